"""`python -m nllb_operator.cli`: the same as `nllb-fleet`."""

from nllb_operator.cli import main

if __name__ == "__main__":
    main()
