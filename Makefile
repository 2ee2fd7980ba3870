# SPDX-License-Identifier: BSD-3-Clause
# Needs GNU make, bash and Python 3.11, 3.12 or 3.13 with its venv module; everything else is installed into .venv.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?=
UV ?= uv
PINS_FLAGS ?=
PYTEST_ARGS ?=

# Python compiles modules on import; pip would compile all of them: 23 s.
PIP_INSTALL := .venv/bin/python -m pip install --quiet --no-input --no-compile --disable-pip-version-check

# Compiled kernels are kept here, as the package folder may be read-only.
export NUMBA_CACHE_DIR := $(CURDIR)/build/numba

# The tests start simlib hundreds of times: its bytecode is kept, even where the environment says otherwise.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help env python reproduce notebooks test test-studies wheel docs conservation mutations mutants same-results endurance interruptions kills sweep-faults fuzz audit
.PHONY: strategy-map sampling coverage bench picture pins clean
.PHONY: check-patches check-each-patch claims statistics-cost dirty-log-stress lab-smoke lab lab-tries lab-control

help:
	@echo "make reproduce   recompute every study, run every notebook and write build/report (5 to 15 minutes)"
	@echo "make notebooks   execute the notebooks alone into build/notebooks (ONLY=\"04 08\" selects by parts of names)"
	@echo "make test        check format, lint and types, and run tests, doctests and the first notebook (4 to 15 minutes)"
	@echo "make test-studies  compute the long notebooks and calibrations, and test what the pages say of them (5 to 20 minutes)"
	@echo "make wheel       build the wheel, install it alone, and run commands (1 minute)"
	@echo "make docs        build the documentation site in build/docs (installs requirements/docs.txt)"
	@echo "make conservation  check $(SCENARIOS) random migrations with an independent witness: no page lost, none sent twice (3 minutes)"
	@echo "make mutations   break the simulator in one place at a time; a test must fail each time (12 minutes)"
	@echo "make mutants     make $(MUTANTS) random small faults in each of four packages, and count those that no test detects (hours)"
	@echo "make same-results  compare commands under $(PYTHONS) and with the lowest allowed versions of packages"
	@echo "make endurance   repeat commands for two hours: memory and file descriptors must not grow"
	@echo "make interruptions  send Ctrl-C and SIGTERM to every long command at $(MOMENTS) random moments (3 minutes)"
	@echo "make kills       kill every command that writes $(KILLS) times: no partial file may remain (20 minutes)"
	@echo "make fuzz        give every parser, importer and command $(INPUTS) broken inputs; resumes (an hour)"
	@echo "make audit       check the pinned packages for known vulnerabilities (installs requirements/audit.txt)"
	@echo "make sweep-faults  kill drivers ($(FAULTS) times), workers and schedulers of sweeps, and fill the disk (10 minutes)"
	@echo "make strategy-map  sweep 100 800 points for the map of notebook 13; writes data/sweeps (10 minutes)"
	@echo "make lab-smoke   build a kernel, boot it under QEMU, compare its lock counts with the simulator's; migrate two guests (10 minutes)"
	@echo "make lab         build all kernels and run all experiments; writes data/collected and data/fits (hours)"
	@echo "make lab-tries   try patch series in the lab; writes data/collected/tried.csv (an hour; resumes from build/tried)"
	@echo "make lab-control  test that lab try finds kernels that lose writes, and how often it reports a change where there is none (10 minutes)"
	@echo "make check-patches  apply the patch series, run checkpatch and compile the changed files, as CI does (10 minutes)"
	@echo "make check-each-patch  the same for all architectures and for each patch alone (30 minutes)"
	@echo "make claims      compare the numbers in the patches' messages with the collected data"
	@echo "make statistics-cost  measure the time that the lock statistics add to an acquisition, natively (1 minute)"
	@echo "make dirty-log-stress  run the series' stress test 200 times under emulation (10 minutes; builds a kernel first)"
	@echo "make env         set up .venv from requirements/dev.txt (the other targets do this by themselves)"
	@echo "make sampling    compare sampled migrations with whole ones; writes the table of docs/sampling.md (15 minutes)"
	@echo "make coverage    check that 90 % intervals cover 85 to 95 % of synthetic data sets; writes docs/statistics.md (5 minutes)"
	@echo "make bench       compare speed with other simulators, and with BEFORE=COMMIT the waiting times with that version"
	@echo "make picture     draw the README's figure, and those of the notebooks that were run (needs Chrome or Chromium)"
	@echo "make pins        compile requirements/*.txt from pyproject.toml (needs uv; PINS_FLAGS=--upgrade for new versions)"
	@echo "make clean       remove .venv, build and the caches"
	@echo
	@echo "PYTHON=...       interpreter for .venv; default: python3, python3.13, python3.12 or python3.11"
	@echo "PYTEST_ARGS=...  more arguments for pytest, such as PYTEST_ARGS='-k lock'"

# Leaves the first suitable interpreter in $python, or says what is missing and fails. A name may exist and not
# run (pyenv's shims), so each is asked for its version rather than looked up.
define find_python
python=; version=; tried=; bare=; \
for p in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	version=$$("$$p" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || version=missing; \
	tried="$${tried:+$$tried, }$$p ($$version)"; \
	case "$$version" in 3.11|3.12|3.13) ;; *) continue ;; esac; \
	if "$$p" -c 'import venv, ensurepip' 2>/dev/null; then python=$$p; break; fi; \
	bare=$$p; \
done; \
if [ -z "$$python" ] && [ -n "$$bare" ]; then \
	echo "$$bare has no venv module. On Debian and Ubuntu: apt-get install python3-venv." >&2; exit 1; \
elif [ -z "$$python" ]; then \
	echo "simlib needs Python 3.11, 3.12 or 3.13. Tried $$tried." \
		"Install one, or name it: make PYTHON=/path/to/python3.12" >&2; exit 1; \
fi
endef

python:
	@$(find_python); echo "$$python ($$version)"

env: .venv/.simlib
	@echo "simlib is installed in .venv."

# A stamp is written last, so that an interrupted set-up starts again.
.venv/.pins: requirements/dev.txt
	@$(find_python); \
	echo "Installing the pinned packages into .venv with $$python ($$version): a minute or two."; \
	"$$python" -m venv --clear .venv
	@$(PIP_INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

.venv/.simlib: pyproject.toml .venv/.pins
	@echo "Installing simlib itself (editable)."
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

.venv/.audit .venv/.bench .venv/.docs .venv/.mutants: .venv/.%: requirements/%.txt .venv/.pins
	@echo "Installing the packages of requirements/$*.txt."
	@$(PIP_INSTALL) --require-hashes -r requirements/$*.txt
	@touch $@

# The engine with traces is compiled at the same time as the plain one.
reproduce: .venv/.simlib
	@.venv/bin/python -m simlib.simulator.engine.compiled recorded & recorded=$$!; \
	.venv/bin/simlib reproduce --out build/report; wait $$recorded

# Each notebook computes what it needs; ONLY="04 08" selects by parts of names.
ONLY ?=
notebooks: .venv/.simlib
	@.venv/bin/python -m studies.notebook_pages build/notebooks $(ONLY)

# The tests of a file run in one process, as they share fixtures that take long. Doctests come last, as they are short.
BY_FILE := --dist loadfile --no-loadscope-reorder

# pytest comes last, so that its summary is the last line. Four processes on two cores, as some tests wait.
test: .venv/.simlib
	@echo "Format and lint."
	@.venv/bin/ruff format --check .
	@.venv/bin/ruff check .
	@echo "Tests, doctests and notebooks: several minutes; beside them the types."
	@mkdir -p build; .venv/bin/mypy >build/types.txt 2>&1 & types=$$!; \
	.venv/bin/python -m simlib.simulator.engine.compiled && \
	.venv/bin/python -m pytest -n 4 $(BY_FILE) -m "not study" $(PYTEST_ARGS); tests=$$?; \
	wait $$types || { cat build/types.txt; exit 1; }; exit $$tests

test-studies: .venv/.simlib
	@.venv/bin/python -m pytest -n 2 $(BY_FILE) -m study $(PYTEST_ARGS) tests

wheel: .venv/.simlib
	@.venv/bin/python checks/wheel.py build/wheel

# Warnings of Sphinx are errors, and so are pages that fetch from outside or have dead links.
docs: .venv/.simlib .venv/.docs
	@PYTHONPATH=docs .venv/bin/python -m website --out build/docs

# The scenarios are the same each time; SCENARIOS=100000 makes more of them.
SCENARIOS := 10000
conservation: .venv/.simlib
	@.venv/bin/python checks/conservation.py $(SCENARIOS)

mutations: .venv/.simlib
	@.venv/bin/python checks/mutations.py

# The mutants are the same each time; MUTANTS=200 tries more. Results in build/mutants are not computed again.
MUTANTS := 100
mutants: .venv/.simlib .venv/.mutants
	@.venv/bin/python checks/mutants.py build/mutants $(MUTANTS)

# Each interpreter with the pinned packages, the first one also with the lowest allowed; they must be installed.
PYTHONS := python3.11 python3.12 python3.13
same-results: .venv/.simlib
	@.venv/bin/python checks/same_results.py $(PYTHONS)

# The moments are the same each time; MOMENTS=100 makes more of them.
MOMENTS := 40
interruptions: .venv/.simlib
	@.venv/bin/python checks/interruptions.py $(MOMENTS)

# Two processes, each for half of the minutes.
endurance: MINUTES := 120
endurance: .venv/.simlib
	@.venv/bin/python checks/endurance.py $(MINUTES)

# The kills are the same each time; KILLS=1000 makes more. One in twelve comes after the command has ended.
KILLS := 220
kills: .venv/.simlib
	@.venv/bin/python checks/kills.py $(KILLS)

# The inputs are the same each time. Finished ones are in build/fuzz; remove it to repeat them. MINUTES=20 is a limit.
INPUTS := 1000000
MINUTES := inf
fuzz: .venv/.simlib
	@.venv/bin/python checks/fuzzing.py $(INPUTS) $(MINUTES)

# The advisory service is another host than the package index: a machine may reach only one of them.
audit: .venv/.simlib .venv/.audit
	@.venv/bin/python checks/audit.py

# Finished points are kept: remove build/strategies to simulate them again.
strategy-map: .venv/.simlib
	@.venv/bin/simlib sweep data/grids/strategies.toml --out build/strategies --resume
	@.venv/bin/python benchmarks/strategy_map.py build/strategies data/sweeps/strategies

# The faults are the same each time; FAULTS=200 makes more of them.
FAULTS := 50
sweep-faults: .venv/.simlib
	@.venv/bin/python checks/sweep_faults.py $(FAULTS)

# "simlib lab check" lists the packages that these need (compilers, the kernel's source, QEMU).
check-patches: .venv/.simlib
	@.venv/bin/python checks/series_check.py --no-per-patch --arch x86_64 --arch arm64

check-each-patch: .venv/.simlib
	@.venv/bin/python checks/series_check.py

claims: .venv/.simlib
	@.venv/bin/python checks/claims.py

statistics-cost: .venv/.simlib
	@.venv/bin/python benchmarks/statistics_cost.py

dirty-log-stress: .venv/.simlib
	@.venv/bin/simlib lab qemu --arch x86_64 --if-needed
	@.venv/bin/simlib lab build --arch x86_64 --kernel plain
	@.venv/bin/python benchmarks/dirty_log_stress.py --runs 200

lab-smoke: .venv/.simlib
	@.venv/bin/simlib lab qemu --arch x86_64 --if-needed
	@.venv/bin/simlib lab build --arch x86_64
	@.venv/bin/simlib lab compare data/experiments/smoke.toml
	@.venv/bin/simlib lab migrate data/experiments/migrate-smoke.toml

lab-tries: .venv/.simlib
	@.venv/bin/simlib lab qemu --if-needed
	@.venv/bin/python checks/lab_tries.py

lab-control: .venv/.simlib
	@.venv/bin/simlib lab qemu --arch x86_64 --if-needed
	@.venv/bin/python checks/lab_control.py

EXPERIMENTS := load fine odd even turns counts memory rings plain ticks waiting switches
lab: .venv/.simlib
	@.venv/bin/simlib lab qemu --if-needed
	@.venv/bin/simlib lab build
	@.venv/bin/simlib lab build --kernel plain
	@for name in $(EXPERIMENTS); do \
		.venv/bin/simlib lab collect data/experiments/$$name.toml --out data/collected --name $$name; \
	done
	@for name in migrate migrate-held-out; do \
		.venv/bin/simlib lab migrate data/experiments/$$name.toml --out data/collected --name $$name; \
	done
	@.venv/bin/simlib lab costs --out data/fits
	@.venv/bin/python checks/shipped.py lab-instruction-times

# Whole simulations are kept in build/sampling; remove it to simulate them again.
sampling: .venv/.simlib
	@.venv/bin/python benchmarks/sampling.py --write

coverage: .venv/.simlib
	@.venv/bin/python checks/interval_coverage.py --write

bench: .venv/.simlib .venv/.bench
	@.venv/bin/python benchmarks/run.py --write $(if $(BEFORE),--before $(BEFORE))

picture: .venv/.simlib
	@.venv/bin/python docs/make_picture.py

# The old pins are the starting point, so that only what must change does. dev comes first: the others follow it. What
# does not change keeps its time: a newer requirements/dev.txt installs .venv anew.
define compile
mkdir -p build/pins; \
if [ -f requirements/$(1).txt ]; then cp requirements/$(1).txt build/pins/$(1).txt; fi; \
echo "requirements/$(1).txt"; \
$(UV) pip compile --quiet --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header $(PINS_FLAGS) $(2) pyproject.toml --output-file build/pins/$(1).txt >/dev/null; \
{ printf '%s\n' '# SPDX-License-Identifier: BSD-3-Clause' \
	'# Compiled from pyproject.toml by "make pins": do not edit. Every pin carries its hashes.'; \
	cat build/pins/$(1).txt; } >build/pins/new.txt; \
cmp -s build/pins/new.txt requirements/$(1).txt || cp build/pins/new.txt requirements/$(1).txt
endef

pins:
	@command -v $(UV) >/dev/null || { echo "make pins needs uv; name it: make pins UV=/path/to/uv" >&2; exit 1; }
	@$(call compile,dev,--extra all --extra dev)
	@$(call compile,run,--constraints requirements/dev.txt)
	@$(call compile,bench,--extra all --extra bench --constraints requirements/dev.txt)
	@$(call compile,audit,--extra all --extra audit --constraints requirements/dev.txt)
	@$(call compile,docs,--extra all --extra docs --constraints requirements/dev.txt)
	@$(call compile,mutants,--extra all --extra mutants --constraints requirements/dev.txt)
	@$(call compile,lowest,--extra all --resolution lowest-direct)

clean:
	@rm -rf .venv build dist .hypothesis .pytest_cache .ruff_cache .mypy_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
