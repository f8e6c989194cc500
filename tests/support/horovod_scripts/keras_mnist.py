"""A classifier of small images in Keras, in the shape of Horovod's example for MNIST."""

import horovod.keras as hvd
import keras
import numpy as np

hvd.init()

rng = np.random.default_rng(hvd.rank())
labels = rng.integers(0, 4, 512)
images = 0.3 * rng.normal(size=(512, 8, 8, 1)).astype("float32")
for quarter in range(4):
    rows, columns = divmod(quarter, 2)
    images[labels == quarter, 4 * rows : 4 * rows + 4, 4 * columns : 4 * columns + 4] += 1.0

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(4, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Dropout(0.1),
        keras.layers.Flatten(),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(4, activation="softmax"),
    ]
)

scaled_lr = 0.005 * hvd.size()
opt = hvd.DistributedOptimizer(
    keras.optimizers.Adam(scaled_lr), backward_passes_per_step=1, average_aggregated_gradients=True
)
model.compile(loss="sparse_categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=2, verbose=1),
]
if hvd.rank() == 0:
    callbacks.append(keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.keras"))

history = model.fit(
    images,
    labels,
    batch_size=32,
    steps_per_epoch=16 // hvd.size(),
    callbacks=callbacks,
    epochs=4,
    verbose=2 if hvd.rank() == 0 else 0,
)
print("accuracy:", history.history["accuracy"][-1])
