"""Write a source distribution again with equal bytes for equal contents: `python tools/repack_sdist.py FILE.tar.gz`.

setuptools puts the time of building into the gzip header and into the files that it generates. Times become
SOURCE_DATE_EPOCH, the entries are sorted, and no user is named.
"""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
from pathlib import Path


def repack(archive: Path, moment: int) -> None:
    """Replace the archive by one whose bytes depend on its contents and `moment` alone."""
    partial = archive.with_name(f"{archive.name}.partial")
    with (
        tarfile.open(archive) as old,
        partial.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=moment) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for entry in sorted(old.getmembers(), key=lambda entry: entry.name):
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = moment, 0, 0, "", ""
            entry.pax_headers = {}
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            new.addfile(entry, old.extractfile(entry) if entry.isreg() else None)
    partial.replace(archive)


if __name__ == "__main__":
    repack(Path(sys.argv[1]), int(os.environ["SOURCE_DATE_EPOCH"]))
