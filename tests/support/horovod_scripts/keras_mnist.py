"""A classifier of digits in Keras, in the shape of Horovod's example for MNIST."""

import horovod.tensorflow.keras as hvd
import keras
import numpy as np
from sklearn.datasets import load_digits

hvd.init()

digits = load_digits()
order = np.random.default_rng(hvd.rank()).permutation(len(digits.target))[: 56 * 32]
images = (digits.images[order, :, :, np.newaxis] / 16.0).astype("float32")
labels = digits.target[order].astype("int64")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Dropout(0.1),
        keras.layers.Flatten(),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dropout(0.1),
        keras.layers.Dense(10, activation="softmax"),
    ]
)

scaled_lr = 0.005 * hvd.size()
opt = keras.optimizers.Adam(scaled_lr)
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(),
    optimizer=opt,
    metrics=["accuracy"],
    experimental_run_tf_function=False,
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))

verbose = 2 if hvd.rank() == 0 else 0
history = model.fit(
    images, labels, batch_size=32, steps_per_epoch=56 // hvd.size(), callbacks=callbacks, epochs=6, verbose=verbose
)
print("accuracy:", history.history["accuracy"][-1])
