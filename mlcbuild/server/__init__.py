"""OpenAI's REST interface over an engine, on Starlette and uvicorn.

The engine comes in from outside (``backend.Backend``): this package knows no bundle and no runtime.
Nothing here is imported before ``mlcbuild serve`` runs.
"""
