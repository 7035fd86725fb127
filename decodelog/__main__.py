"""`python -m decodelog` is the command `decodelog`."""

from .service.cli.entry import main

if __name__ == "__main__":
    main()
