"""The checks and the public address of a release: `make release`."""
