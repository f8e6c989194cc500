"""The package that `import horovod` finds under `quorate run --as horovod`: `horovod.torch` is `quorate.horovod`."""

__version__ = "0.28.1"
"""The version of Horovod whose API `quorate.horovod` has, for scripts that ask."""
