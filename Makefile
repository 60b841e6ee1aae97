# Everything is set up in .venv; nothing global is touched. PYTHON picks the interpreter (3.11 or newer).
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
TREE := build/tree
ROOMS := configs suites reward mutants
# Most of seven million lines is never imported; what is, Python compiles at its first import.
PIP := $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check -c constraints.txt
export PYTHONDONTWRITEBYTECODE :=
# Processes that share the tests; each holds a few judges of its own, about 2 GB.
JOBS ?= 2
# Torch's threads of two processes on the same cores wait for one another.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q
ALONE = $(shell grep -rl --include='test_*.py' 'pytest.mark.alone' tests)

.PHONY: demo test test-again test-gpu lint benchmarks clean

demo: $(READY)
	$(BIN)/python examples/demo.py

# A file's tests stay in one process, in their order: they share judges and compiled code. What measures time comes last,
# with the machine to itself. Both parts run, whatever comes of the first.
test: $(READY) lint
	$(BIN)/python -m compileall -q -x substrates $(ROOMS) # judges and sandboxes are started hundreds of times
	@status=0; set -x; \
	$(PYTEST) -n $(JOBS) --dist loadfile -m "not gpu and not alone" tests || status=$$?; \
	$(PYTEST) -m "alone and not gpu" $(ALONE) || status=$$?; \
	exit $$status

# What failed in the last `make test`, once more and one by one: on a shared machine a time limit can be missed by chance.
test-again: $(READY)
	$(PYTEST) -m "not gpu" --last-failed --last-failed-no-failures none tests

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
	for room in $(ROOMS); do ln -sfn $(CURDIR)/$$room $@/kernelward/$$room; done

benchmarks: $(READY)
	$(BIN)/python benchmarks/verdicts.py
	$(BIN)/python benchmarks/evaluations.py

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e ".[trl,triton,report,examples,test]"
	touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
