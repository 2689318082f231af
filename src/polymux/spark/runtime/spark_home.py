"""The SPARK_HOME of a session, and the environment in which child processes import polymux."""

import os
import site
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import polymux
from polymux.core.errors import MissingExtra
from polymux.spark.runtime.user_cache import cache_folder, usable_folder


def package_folder() -> Path:
    """Return the folder of the imported package polymux."""
    return Path(polymux.__file__).parent


def pyspark_folder() -> Path:
    """Return the folder of the installed PySpark, without importing it. May raise MissingExtra."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra("spark", "running on Spark")
    return Path(spec.origin).parent


def pyspark_home() -> Path:
    """Return the installed SPARK_HOME: from the environment, else the PySpark package."""
    return Path(os.environ.get("SPARK_HOME") or pyspark_folder())


def spark_home() -> Path:
    """Return the SPARK_HOME for a session on this machine.

    Spark puts the `pyspark.zip` of its home first on the path of every Python worker. Python does
    not cache bytecode of modules imported from an archive, so each worker would compile all of
    PySpark again, which takes about a second. The home is therefore a folder of links to the
    installed package without that archive, and the workers import the installed PySpark. A
    SPARK_HOME from the environment is used unchanged.
    """
    real = pyspark_home()
    # Without the archive, the workers must find the same PySpark by themselves.
    if os.environ.get("SPARK_HOME") or real.parent not in _site_packages():
        return real
    key = sha256(os.fsencode(real)).hexdigest()[:12]
    view = cache_folder() / f"spark-{key}"
    return link_home(real, view) if usable_folder(view) else real


def link_home(real: Path, view: Path) -> Path:
    """Make `view` a SPARK_HOME with links to the jars and scripts of `real`.

    Returns `view`, or `real` if the links cannot be created.
    """
    for name in ("bin", "jars"):
        link = view / name
        with suppress(OSError):
            view.mkdir(exist_ok=True)
            link.symlink_to(real / name)
        if os.path.realpath(link) != os.path.realpath(real / name):
            return real
    return view


def importable_environ() -> dict[str, str]:
    """Return the environment with a PYTHONPATH from which child processes can import polymux."""
    environ = dict(os.environ)
    parent = package_folder().parent
    if parent not in _site_packages():
        paths = [str(parent), *environ.get("PYTHONPATH", "").split(os.pathsep)]
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return environ


def _site_packages() -> list[Path]:
    """Return the site-packages folders of this interpreter."""
    folders = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    return [Path(folder) for folder in folders]
