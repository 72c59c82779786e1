"""`python -m localpolicy` is `lpi`."""

from localpolicy.cli.main import main

if __name__ == "__main__":
    main()
