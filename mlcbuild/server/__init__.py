"""OpenAI's REST interface over an engine, and files for browsers, on Starlette and uvicorn.

Engines and lists of files come in from outside: this package knows no bundle and no runtime.
Nothing here is imported before ``mlcbuild serve`` or ``serve-web`` runs.
"""
