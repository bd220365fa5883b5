"""``python -m mlcbuild``."""

from __future__ import annotations

from mlcbuild.cli.main import main

if __name__ == "__main__":
    main()
