"""Training: from a dataset and a configuration to a model, in one process or several, resumable.

run          train and evaluate, the public functions
pipeline     fit_model: features -> fit -> finish -> codes, the one path of every training run
config       TrainConfig, and the defaults of methods; presets: the paper's recipes
context      RunContext: processes, files, validation images and callbacks; the features of a dataset
finetuning   a backbone, or a part of it, and a head together; on images (augmentation) or maps (last_stages)
loop         the training loop of all
finish       rotation, label threshold, class sizes, general code
run_folder   the folder of a run: configuration, log, results
distributed  several processes, mixed precision
"""
