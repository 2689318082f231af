"""Where Spark's jars and scripts are, and what a child process needs to import this package."""

import os
import site
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import polymux.spark
from polymux.core.errors import MissingExtra
from polymux.spark.runtime.user_cache import cache_folder, usable_folder


def package_folder() -> Path:
    """The folder of the package polymux, as imported."""
    return Path(polymux.spark.__file__).parent.parent


def pyspark_folder() -> Path:
    """The folder of the installed PySpark; raises `MissingExtra` without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise MissingExtra("spark", "running on Spark")
    return Path(spec.origin).parent


def pyspark_home() -> Path:
    """The SPARK_HOME as it is installed: the user's own, else the package itself."""
    return Path(os.environ.get("SPARK_HOME") or pyspark_folder())


def spark_home() -> Path:
    """The SPARK_HOME for a session on this machine.

    Spark puts the `pyspark.zip` of its home first on the path of every Python worker. Python
    keeps no compiled form of what it imports from an archive, so each worker would compile all
    of PySpark anew, about a second. So the home is a view of the installed package without that
    archive, and the workers import the installed PySpark. A SPARK_HOME of the user's own is
    used as it is.
    """
    real = pyspark_home()
    # The workers must find the same PySpark without the archive.
    if os.environ.get("SPARK_HOME") or real.parent not in _site_packages():
        return real
    key = sha256(os.fsencode(real)).hexdigest()[:12]
    view = cache_folder() / f"spark-{key}"
    return link_home(real, view) if usable_folder(view) else real


def link_home(real: Path, view: Path) -> Path:
    """Make `view` a home with the jars and scripts of `real` and nothing else of it.

    Gives `real` itself back if that cannot be done.
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
    """This process's environment, with which a child of this interpreter can import polymux."""
    environ = dict(os.environ)
    parent = package_folder().parent
    if parent not in _site_packages():
        paths = [str(parent), *environ.get("PYTHONPATH", "").split(os.pathsep)]
        environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    return environ


def _site_packages() -> list[Path]:
    """Where this interpreter looks by itself."""
    places = list(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    return [Path(place) for place in places]
