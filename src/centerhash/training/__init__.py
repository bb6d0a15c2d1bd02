"""Training: from a data set and a configuration to a model, in one process or many, resumable.

run         train: the one trainer, with or without a folder that holds the run
scoring     evaluate: how well a model ranks a data set
config      TrainConfig, and what the method and the number of bits fill in; presets/ holds the paper's recipes
features    a data set's features, the splits without broken images
frozen      fit_frozen: a head or a shallow method on frozen features
finetuning  fit_whole: backbone and head together, on augmented images
loop        the one training loop of both; checkpoints, distributed, rotation: its parts
loggers     where the figures of every epoch go: csv, TensorBoard, wandb, MLflow
watching    mAP on training images that were held out
folder      what a run's folder holds, written and read
"""
