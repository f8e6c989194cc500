"""CIFAR-10, from the files as published, and the ResNet-32 of its paper's figures."""
