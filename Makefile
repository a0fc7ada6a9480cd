# `make demo` and `make test` set up what they need on a machine with Python 3.10 or newer and nothing else.
PYTHON ?= python3
# Most of what is installed is never imported: what is gets compiled then, once, which halves the time.
unexport PYTHONDONTWRITEBYTECODE
PIP_FLAGS = --quiet --disable-pip-version-check --no-compile -c tests/constraints.txt
PYTEST_FLAGS ?=

.PHONY: demo test test-newest test-floor test-versions test-between test-slow test-train test-app test-dist test-harness test-stores docs lint \
	environments format bench clean

demo: .venv/installed
	.venv/bin/reasonknee demo

test: test-floor test-between test-newest

# Everything, on the newest supported datasets.
test-newest: .venv/installed-test
	.venv/bin/python -m pytest $(PYTEST_FLAGS)

# The oldest datasets that setup.cfg admits; it still runs loading scripts.
test-floor: .venv-floor/installed
	.venv-floor/bin/python -m pytest -m "floor and not slow" $(PYTEST_FLAGS)

# The floor tests of rows and streams on the versions of datasets in between: the long way. CI runs 3.6 and the newest
# in full, and the stream tests on 4.8.
VERSIONS = 4.0.0 4.4.2 4.8.4 5.0.0

test-versions: $(VERSIONS:%=test-version-%)

test-version-%: .venv-%/installed
	.venv-$*/bin/python -m pytest -m "floor and not slow" tests/dataset tests/knee $(PYTEST_FLAGS)

test-between: .venv-4.8.4/installed
	.venv-4.8.4/bin/python -m pytest -m "floor and not slow" tests/dataset -k "stream" $(PYTEST_FLAGS)

test-slow: .venv/installed-test
	.venv/bin/python -m pytest -m "slow and not train" $(PYTEST_FLAGS)

# The training loops with the real libraries; their environment takes about 6 GB. One file, one worker: two of them
# share a costly run.
test-train: .venv-train/installed
	.venv-train/bin/python -m pytest tests/train tests/dataset/test_third_dataset.py -m train --dist loadscope $(PYTEST_FLAGS)

# The app, in a browser; it skips without one, with the reason.
test-app: .venv-app/installed
	.venv-app/bin/python -m pytest tests/app $(PYTEST_FLAGS)

# The tasks of lm-evaluation-harness and of Inspect, run by them.
test-harness: .venv-harness/installed
	.venv-harness/bin/python -m pytest tests/bench/test_bench_harness.py tests/bench/test_bench_inspect.py $(PYTEST_FLAGS)

# Conversions to object stores, in servers that speak S3 and GCS.
test-stores: .venv-harness/installed
	.venv-harness/bin/python -m pytest tests/publish/test_publish_places.py $(PYTEST_FLAGS)

# All that CI needs, so that `make -j2` installs two at a time.
environments: .venv/installed-test .venv-train/installed .venv-harness/installed .venv-app/installed \
	.venv-docs/installed .venv-floor/installed .venv-4.8.4/installed

# The command out of the built wheel, in empty environments.
test-dist: .venv/installed-test
	.ci/dist .venv/bin/python

# Side by side with what people use today, at small size; without --small they take long and want an idle machine.
bench: .venv/installed-bench
	.venv/bin/python benchmarks/start.py
	.venv/bin/python benchmarks/annotations.py --small
	.venv/bin/python benchmarks/volumes.py --small
	.venv/bin/python benchmarks/masks.py --small
	.venv/bin/python benchmarks/convert.py --small

# The site, in build/site: notebooks are executed, then pages built; any warning is an error, and nothing is fetched.
docs: .venv-docs/installed .venv/installed-test
	.venv/bin/python docs/tools/run_notebooks.py build/notebooks notebooks/*.ipynb
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict

lint: .venv/installed-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

format: .venv/installed-test
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python setup.cfg
	.venv/bin/python -m pip install $(PIP_FLAGS) -e '.[fast,viz]'
	touch $@

.venv/installed-test: .venv/bin/python setup.cfg tests/constraints.txt
	.venv/bin/python -m pip install $(PIP_FLAGS) -e '.[fast,viz,test,lint]'
	touch $@ .venv/installed

.venv/installed-bench: .venv/installed-test benchmarks/requirements.txt
	.venv/bin/python -m pip install $(PIP_FLAGS) -r benchmarks/requirements.txt
	touch $@

.venv-floor/installed: setup.cfg
	$(PYTHON) -m venv .venv-floor
	.venv-floor/bin/python -m pip install $(PIP_FLAGS) -e '.[test-floor]' 'datasets==3.6.0'
	touch $@

.venv-docs/installed: setup.cfg
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install $(PIP_FLAGS) -e '.[docs]'
	touch $@

.venv-app/installed: setup.cfg tests/constraints.txt
	$(PYTHON) -m venv .venv-app
	.venv-app/bin/python -m pip install $(PIP_FLAGS) -e '.[fast,app,test-app]'
	touch $@

.venv-harness/installed: setup.cfg tests/constraints.txt
	$(PYTHON) -m venv .venv-harness
	.venv-harness/bin/python -m pip install $(PIP_FLAGS) -e '.[fast,viz,harness,test-harness,test-stores]'
	touch $@

.venv-%/installed: setup.cfg
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install $(PIP_FLAGS) -e '.[test-floor]' 'datasets==$*'
	touch $@

.venv-train/installed: setup.cfg tests/constraints.txt
	$(PYTHON) -m venv .venv-train
	.venv-train/bin/python -m pip install $(PIP_FLAGS) -e '.[fast,viz,train,test-train]'
	touch $@

clean:
	rm -rf .venv .venv-* build dist *.egg-info
