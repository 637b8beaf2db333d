"""The workspace as a tar file and back; runs inside a sandbox, as a program like any other.

This file is not imported: its text is handed to a bare interpreter whose working folder is the
workspace (`python3 -I -S -c TEXT pack`, or `unpack`), so that nobody outside walks through folders
that a program made, and time and memory are bounded as for all programs.
"""

import os
import stat
import sys
import tarfile


def pack() -> None:
    """Write folders, regular files and links to standard output, in the order of their names."""
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for folder, folders, files in os.walk(".", onerror=fail):
            folders.sort()
            for name in sorted(folders + files):
                path = os.path.normpath(os.path.join(folder, name))
                kind = os.lstat(path).st_mode
                if stat.S_ISREG(kind) or stat.S_ISDIR(kind) or stat.S_ISLNK(kind):
                    archive.add(path, recursive=False, filter=forget_moment)


def forget_moment(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Keep only what unpacking restores: no fractions of seconds, no times of links."""
    member.mtime = 0 if member.issym() else int(member.mtime)
    return member


def fail(error: OSError) -> None:
    """Raise: what cannot be packed must not be missing in silence."""
    raise error


def unpack() -> None:
    """Empty the workspace and fill it from standard input."""
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        # Only what `pack` wrote comes here, so all is restored as it was.
        archive.extraction_filter = lambda member, _: member
        empty(os.open(".", os.O_RDONLY | os.O_DIRECTORY))
        archive.extractall()


def empty(folder: int) -> None:
    """Remove all that is in an open folder, whatever permissions the program gave it."""
    os.fchmod(folder, 0o700)
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
            continue
        os.chmod(name, 0o700, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        try:
            empty(inner)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=folder)


if __name__ == "__main__":
    try:
        {"pack": pack, "unpack": unpack}[sys.argv[1]]()
    except (OSError, tarfile.TarError, RecursionError, MemoryError) as error:
        sys.stderr.write(f"{getattr(error, 'strerror', None) or error or type(error).__name__}")
        sys.exit(1)
