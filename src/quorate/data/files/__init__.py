"""Examples from files: arrays, tokens, archives, tables, folders of images, as one dataset for `loader`."""
