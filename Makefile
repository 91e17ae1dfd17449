# Two commands matter: `make demo` and `make test`. Each sets up all it needs, in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
DATA ?= $(or $(REPULSE_DATA),data)
INPUTS := pyproject.toml lab/pyproject.toml constraints.txt

.PHONY: help setup demo test notebooks engines figures page tables taps defaults evaluate results bench docs data clean

help:
	@echo "make demo      install, train a small network on digits, retrofit it, write demo/index.html"
	@echo "make test      install, then ruff, pyright and all tests"
	@echo "make notebooks run the notebooks in examples/notebooks"
	@echo "make engines   install Ray and Spark too, and test bulk scoring on the real engines"
	@echo "make setup     a .venv with everything for development"
	@echo "make data      fetch the real data sets that can be had, and say what is left to do by hand"
	@echo "make figures   draw the pictures of the README and the docs again"
	@echo "make tables    put the tables of docs/results in the README and the docs, and measure that of the demo"
	@echo "make taps      measure what taps add to the time of a prediction"
	@echo "make page      write page/index.html: draw a digit in the browser, see label and both doubts (needs npm, once)"
	@echo "make docs      build the documentation site in site/"
	@echo "make evaluate  compare every method on CIFAR-10 and DirtyMNIST (needs the real data; an hour)"
	@echo "make results   compare, reproduce the paper for two cores, write docs/results (needs the real data; three hours)"
	@echo "make campaign  attack files, disks, calls, threads; count in docs/reliability.md (25 minutes; SHARE=0.01 for one)"
	@echo "make mutants   change the code in 60 places, see which the tests notice, list those that survive (15 minutes)"
	@echo "make coverage  run all tests and print which share of the library's branches they take"
	@echo "make test-lowest  the tests of the core with the lowest versions that pyproject.toml allows, in .venv-lowest"
	@echo "make bench     measure what it costs and write docs/speed.md (twenty minutes, on a machine with nothing else to do)"
	@echo "make defaults  measure the tables that decided the default recipe (needs the real data)"

# torch first and pinned: anything that asks for it later then finds it there.
$(VENV)/.torch: constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "repulse needs Python 3.11 or newer; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	@touch $@

$(VENV)/.demo: $(VENV)/.torch $(INPUTS)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.torch $(INPUTS)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]' --editable 'lab[laplace,tables,text,images]'
	@touch $@ $(VENV)/.demo

setup: $(VENV)/.dev

demo: $(VENV)/.demo
	$(BIN)/repulse demo --out demo

test: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/basedpyright
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -m "not engine"

notebooks: $(VENV)/.dev
	$(BIN)/python examples/run_notebooks.py --check

engines: $(VENV)/.dev
	$(PIP) install --quiet --constraint constraints.txt --editable '.[ray,spark,dask]'
	$(BIN)/python -m pytest -m engine tests/scale

# Binary packages of the lowest versions exist for the lowest Python alone.
$(VENV)-lowest/.done: benchmarks/lowest.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/python -m pip --disable-pip-version-check install --quiet --constraint benchmarks/lowest.txt \
		--editable '.[plots,sklearn,files,serve,onnx]' pytest hypothesis beartype httpx
	@touch $@

test-lowest: $(VENV)-lowest/.done
	$(VENV)-lowest/bin/python -m pytest -p no:xdist tests/closed_form tests/particles tests/metrics tests/checkpoint \
		tests/test_retrofit.py tests/test_bad_input.py tests/test_not_silent.py tests/test_any_input.py

campaign: $(VENV)/.dev
	$(BIN)/python -W ignore benchmarks/campaign.py --share $(or $(SHARE),1) --only "$(ONLY)" --seed $(or $(SEED),0)

mutants: $(VENV)/.dev
	$(BIN)/python benchmarks/campaign.py --mutants $(or $(COUNT),60) --seed $(or $(SEED),0)

coverage: $(VENV)/.dev
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest --numprocesses 2 --dist loadfile -m "not engine"
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --skip-covered --sort cover

figures: $(VENV)/.dev
	$(BIN)/python examples/toy.py --out docs/images/toy.png
	$(BIN)/python examples/gallery.py --out docs/images/repulsion-sources.png \
		--others docs/images/repulsion-sources-others.png
	$(BIN)/python examples/corruptions_gallery.py --out docs/images/corruptions.png
	$(BIN)/repulse demo --out demo --map docs/images/digits-map.png

page: $(VENV)/.dev
	$(BIN)/python examples/draw_a_digit.py --out page

tables: $(VENV)/.dev
	$(BIN)/python benchmarks/tables.py --demo

taps: $(VENV)/.dev
	$(BIN)/python benchmarks/taps.py

docs: $(VENV)/.dev
	$(PIP) install --quiet --constraint constraints.txt --editable '.[docs]'
	$(BIN)/mkdocs build --strict

defaults: $(VENV)/.dev
	REPULSE_DATA=$(DATA) $(BIN)/python benchmarks/defaults.py

evaluate: $(VENV)/.dev
	$(BIN)/repulse-lab evaluate --network resnet20 --data $(DATA)
	$(BIN)/repulse-lab evaluate --network lenet --data $(DATA)

results: evaluate
	$(BIN)/repulse-lab reproduce all --preset cpu --data $(DATA)
	$(BIN)/python benchmarks/results.py
	$(BIN)/python benchmarks/tables.py

bench: $(VENV)/.dev
	$(BIN)/repulse-lab bench $(if $(wildcard $(DATA)),--data $(DATA))
	$(BIN)/python benchmarks/speed.py

data: $(VENV)/.dev
	$(BIN)/python -m repulse_lab.data.fetch $(DATA)

clean:
	rm -rf $(VENV) $(VENV)-lowest .coverage demo page dist .pytest_cache .ruff_cache .hypothesis
