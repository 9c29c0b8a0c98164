# Every target makes the environment first if it is missing.
PYTHON ?= python3
PYTEST = .venv/bin/pytest -n auto

.PHONY: properties test lint kill-matrix comparison false-alarms mutation-score

properties: .venv
	$(PYTEST) properties/

test: .venv
	$(PYTEST) tests/

kill-matrix: .venv
	.venv/bin/python -m tests.kill_matrix

comparison: .venv
	.venv/bin/python -m tests.public_grids

false-alarms: .venv
	.venv/bin/python -m tests.false_alarms

mutation-score: .venv
	.venv/bin/python -m tests.mutation_score

lint: .venv
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

.venv: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)" --editable '.[dev]'
	touch .venv
