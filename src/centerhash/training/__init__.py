"""Training: from a dataset and a configuration to a model, in one process or several, resumable.

run          train and evaluate, the public functions
session      Session: the processes, files, held-out images and callbacks that every step shares
config       TrainConfig, and the defaults of methods; presets: the paper's recipes
frozen       fit_frozen: a head or a shallow method on frozen features
finetuning   fit_whole: backbone and head together, on augmented images
last_stages  fit_last: the last stages of a backbone and a head, on maps that are computed once
loop         the training loop of all
finish       rotation, label threshold, class sizes, visual code, result files
run_folder   the files of a run: configuration, log, checkpoints
distributed  several processes, mixed precision
loggers      csv, TensorBoard, wandb, MLflow
torch_metric RetrievalHashMAP: mAP in the training loops of others, by torchmetrics
"""
