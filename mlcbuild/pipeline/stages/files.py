"""Names of the files that stages hand to each other.

Apart from the stages themselves, so that one which reads a file does not depend on the code that
made it: what it holds is in the key already.
"""

MODEL = "model.json"  # inspect: what will be built of the checkpoint
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
LICENSES = "licenses"
PLAN = "plan.json"  # lower
KERNELS = "kernels.json"
SCHEDULES = "schedules.json"  # lower: tags of kernels; schedule: what was chosen
RECORDS = "records.jsonl"  # schedule: the tuning records used, if asked for
OBJECT = "kernels.o"  # compile
WASM_LIBRARY = "model.wasm"  # web_library
NOTES = "notes.json"  # tokenizer: for the manifest
NEEDS = "needs.json"  # client_params, web_compile: what a device must offer
LIBRARY = "library.json"  # web_compile: what the library tells of itself
