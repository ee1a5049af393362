"""Programs for maintainers of this repository. They are not part of the package."""
