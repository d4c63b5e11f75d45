# make first  builds the package and runs a first test, without PyTorch
# make run    trains the example model     make test   runs the tests, but for slow ones
# make test-all  runs the slow ones as well, as is due where kernels or types have changed; before a
#                release, with ARGS=--thorough
# make lint   checks style and types, in parts such as make lint-mypy
# make docs   builds the documentation as a web site, in build/site
# make wheel  builds and checks a wheel
# make fuzz   calls what is there as nobody would, ARGS=--seconds=600 for so long
# make sanitize  does so with sanitizers built in, ARGS=--fast without the ops
#
# All of it happens in a virtual environment, .venv, that these targets make and
# keep up to date. The package in it is an editable installation: changes to
# Python files are live, changes to C++ files rebuild it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Python compiles a module when it is first imported; most of those of TensorFlow and PyTorch never
# are, and pip would take a minute to compile them all.
PIP := PIP_NO_COMPILE=1 $(BIN)/python -m pip --quiet --disable-pip-version-check --no-input
CXX_FILES = $(shell find ops kernels cudnn_rnn_tf -name '*.cc' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')
CXX_PROGRAMS = $(wildcard examples/*.cc tests/programs/*.cc tests/programs/*.h)
BUILD_FILES = pyproject.toml CMakeLists.txt \
  pip_package/tensorflow_build_flags.py cudnn_rnn_tf/native/build_info.py.in

LINTS = ruff-check ruff-format mypy clang-format zizmor

.PHONY: first run test test-all fuzz sanitize lint $(LINTS:%=lint-%) docs wheel clean

first: $(VENV)/.package
	@$(PIP) install 'pytest<9.2'
	$(BIN)/python -m pytest --quiet tests/ops/test_native.py

run: $(VENV)/.package $(VENV)/.examples
	$(BIN)/python examples/char_lm.py $(ARGS)

test: $(VENV)/.package $(VENV)/.test $(VENV)/.examples
	$(BIN)/python -m pytest -n 2 --dist loadgroup -m "not slow" $(ARGS)

test-all: $(VENV)/.package $(VENV)/.test $(VENV)/.examples
	$(BIN)/python -m pytest -n 2 --dist loadgroup $(ARGS)

fuzz: $(VENV)/.package $(VENV)/.test
	$(BIN)/python tests/fuzz/fuzz.py $(ARGS)

sanitize: $(VENV)/.package
	$(BIN)/python tests/sanitize.py $(ARGS)

lint: $(LINTS:%=lint-%)
$(LINTS:%=lint-%): $(VENV)/.dev
lint-ruff-check:
	@$(BIN)/ruff check --quiet .
lint-ruff-format:
	@$(BIN)/ruff format --quiet --check .
lint-mypy:
	@$(BIN)/mypy
lint-clang-format:
	@$(BIN)/clang-format --dry-run --Werror $(CXX_FILES) $(CXX_PROGRAMS)
lint-zizmor:
	@$(BIN)/zizmor --offline --quiet .github

# With --quiet, MkDocs would count no warnings, and --strict would let them all pass.
docs: $(VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python tests/check_site.py build/site

wheel: $(VENV)/.wheel
	$(BIN)/python pip_package/build_pip_package.py $(ARGS)

clean:
	rm -rf $(VENV) build dist

# The files below say that a step is done, and when.

$(VENV)/.created: | pip_package/install_system_packages.sh
	@pip_package/install_system_packages.sh $(PYTHON)
	@echo "Making $(VENV), which all of this happens in"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --upgrade 'pip>=25.1'
	@touch $@

# What building, linting, documenting and making wheels need, each a dependency group.
$(VENV)/.build $(VENV)/.dev $(VENV)/.docs $(VENV)/.wheel: $(VENV)/.%: $(VENV)/.created pyproject.toml
	@echo "Downloading pyproject.toml's group $*$(if $(filter build,$*), and TensorFlow: 0.6 GB)"
	@$(PIP) install --group $*
	@touch $@

$(VENV)/.package: $(VENV)/.build $(BUILD_FILES) $(CXX_FILES)
	@echo "Compiling what changed of the C++ code; the first time, it takes about 3 minutes"
	@$(PIP) install --no-build-isolation \
	  --config-settings=build-dir=$(VENV)/cmake --editable .
	@touch $@

# The package is there by now, so these only add what its extras need.
$(VENV)/.test: pyproject.toml | $(VENV)/.package
	@echo "Downloading what the tests need, PyTorch above all (about 3 GB)"
	@$(PIP) install 'cudnn_rnn_tf[test]'
	@touch $@

# An example reads a file of sktime. Without what sktime itself needs, such as scikit-learn, which
# Keras imports where it can, all processes start faster.
$(VENV)/.examples: pyproject.toml examples/requirements.txt | $(VENV)/.package
	@echo "Downloading what the examples need"
	@$(PIP) install 'cudnn_rnn_tf[examples]' statsmodels
	@$(PIP) install --no-deps --requirement examples/requirements.txt
	@touch $@
