"""The ground floor: contracts, vectors, errors and the registry. Imports nothing else of Quorate."""
