"""Videos as sequences of features, of very unequal length, and the LSTM that eager-SGD was measured with."""
