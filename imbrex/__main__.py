"""`python -m imbrex`: the command line."""

from imbrex.cli.app import main

if __name__ == "__main__":
    main()
