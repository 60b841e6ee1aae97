# Everything is set up in .venv; nothing global is touched. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TREE := build/tree

.PHONY: demo test test-again test-gpu lint benchmarks clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY) lint
	$(BIN)/python -m pytest -q -m "not gpu" tests

# What failed in the last `make test`, once more: on a shared machine a time limit can be missed by chance.
test-again: $(READY)
	$(BIN)/python -m pytest -q -m "not gpu" --last-failed --last-failed-no-failures none tests

# On a machine with an NVIDIA GPU, with the Python, torch and triton that are installed there.
test-gpu: $(TREE)
	PYTHONPATH=$(TREE) $(PYTHON) -m pytest -q -m gpu tests

lint: $(READY) $(TREE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPYPATH=$(TREE) $(BIN)/mypy -p kernelward.suites -p kernelward.reward -p kernelward.mutants

# The rooms under their installed names, without installing: for the type checker and for machines without pip.
$(TREE):
	mkdir -p $@/kernelward
	for room in configs suites reward mutants; do ln -sfn $(CURDIR)/$$room $@/kernelward/$$room; done

benchmarks: $(READY)
	$(BIN)/python benchmarks/verdicts.py

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[trl,triton,report,examples,test]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
