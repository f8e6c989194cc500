"""What runs come to in numbers."""
