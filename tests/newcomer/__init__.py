"""A newcomer's first hour: `make newcomer`."""
