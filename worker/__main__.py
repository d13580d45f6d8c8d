"""`python -m worker [FILE.toml]`: a worker configured by file and environment alone."""

import sys
from pathlib import Path

from protos.errors import ImbrexError
from worker.daemon import main

if __name__ == "__main__":
    try:
        sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    except ImbrexError as error:
        sys.exit(f"error: {error.cause}\ncure:  {error.cure}")
