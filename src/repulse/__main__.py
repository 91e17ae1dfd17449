"""`python -m repulse` is the command `repulse`."""

from repulse.cli import main

if __name__ == "__main__":
    main()
