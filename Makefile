# Everything is set up in .venv; nothing global is touched. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TYPED := build/typecheck/kernelward

.PHONY: demo test test-gpu lint benchmarks clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY) lint
	$(BIN)/python -m pytest -q -m "not gpu" tests

# On a machine with an NVIDIA GPU, with whatever torch is installed there (no virtual environment of ours).
test-gpu:
	PYTHONPATH=$$($(PYTHON) tests/gpu_path.py) $(PYTHON) -m pytest -q -m gpu tests

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	mkdir -p $(TYPED)
	for room in configs suites reward mutants; do ln -sfn $(CURDIR)/$$room $(TYPED)/$$room; done
	MYPYPATH=build/typecheck $(BIN)/mypy -p kernelward.suites -p kernelward.reward -p kernelward.mutants

benchmarks: $(READY)
	$(BIN)/python benchmarks/verdicts.py

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[trl,triton,examples,test]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
