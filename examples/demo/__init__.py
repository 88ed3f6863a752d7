"""The demo, on two stages: `PYTHONPATH=examples python -m demo local` or `… kubernetes`."""
