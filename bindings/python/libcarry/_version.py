"""The package's version, which the library's must equal: structures are passed as this version's headers lay them out."""

__version__ = "0.1.0"
