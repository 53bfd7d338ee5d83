"""How training frameworks lay out a checkpoint, one row per layout; everything that `layouts` knows is data here.

The rows were read in the frameworks' own writers; the order of files below is the order in which they are written.
Globs are matched against a file's name, or, where they hold a slash, against its path below the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# names that have a step in them by a word that says so, whatever else they hold
STEP_WORD = r"(?:.*[-_.=/])?(?:global_?step|step|iter|iteration|ba|checkpoint|ckpt)[-_=]?(?P<step>\d+)(?:[-_.=].*)?"
ANY_NAME = (STEP_WORD, r"(?P<step>\d+)", r".*")

# a folder or file of such a name is being written, or was left half-written
TEMPORARY = (
    "tmp-*",
    "*.tmp",
    "*_tmp",
    "*-tmp",
    "tmp.*",
    "_tmp_*",
    "recovery_tmp*",
    "*.orbax-checkpoint-tmp*",
    "*-unfinished",
    "*.part",
    "*.incomplete",
)

# files that say "weights": a folder with one of them may be a checkpoint, a file of such a name may be one by itself
WEIGHTS = (
    "*.safetensors",
    "*.pt",
    "*.pth",
    "*.pth.tar",
    "*.ckpt",
    "*.keras",
    "*.weights.h5",
    "*.distcp",
    "*model*.bin",
    "*checkpoint*.bin",
    "*ckpt*.bin",
    "*checkpoint*.pkl",
    "*.msgpack",
)
# lies beside the weights of a model that was saved for use
MODEL_CARD = (
    "generation_config.json",
    "preprocessor_config.json",
    "special_tokens_map.json",
    "trainer_state.json",
    "training_args.bin",
    "vocab.*",
    "merges.txt",
    "*.index.json",
    "*.jinja",
    "README.md",
)
# what a writer leaves before the first weights
BEGUN = (*WEIGHTS, *TEMPORARY, "config.json", "tokenizer*.json", "adapter_config.json", "common.pt")
NOT_WEIGHTS = ("training_args.bin", "*.index.json", "tokenizer*", "vocab*")

# lies in a checkpoint's folder at times and is none of it: it grows when no checkpoint does
NOT_DATA = ("events.out.tfevents*", "*.log", "*.jsonl", "*.out", "*.err", "*.lock")

EVENT_FILES = "events.out.tfevents*"  # TensorBoard: log-like progress, never a checkpoint


@dataclass(frozen=True, slots=True)
class Layout:
    """One way to write a checkpoint.

    `names` are regular expressions for the whole name; group `step` is a step, group `order` a number that only
    sorts (an epoch, a count of saves). A folder is of this layout when its name fits and one of `content` lies in
    it. Complete is what has a marker (`markers` within, or one of `beside` in the folder above that names it) that
    is not older than the newest data.
    """

    name: str
    names: tuple[str, ...]
    content: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()  # written last where the marker is left out: counts once nothing changes any more
    unmarked: Literal["never", "stable", "lone"] = "never"  # no marker: stable size is enough; lone: if none is beside
    late: tuple[str, ...] = ()  # come after the marker and are no data
    stragglers: tuple[str, ...] = ()  # other ranks may write these a little after the marker
    folder: bool = True
    begins: tuple[str, ...] = ()  # with one of these the name alone says it, before the content does
    loose: bool = False  # only what no other row knows


LAYOUTS: tuple[Layout, ...] = (
    Layout(  # vllm-project/speculators 0.7 train/checkpointer.py; the folder is the epoch, overwritten in place
        "speculators",
        (r"(?P<order>\d{1,2})", r"interrupted"),
        begins=("config.json", "model*.safetensors"),
        content=("training_state.json", "train_command.txt", ".train_command_*.tmp"),
        markers=("training_state.json",),
        closing=("scheduler_state_dict.pt", "train_command.txt"),
        late=("val_metrics.json",),
    ),
    Layout(  # 0.3 to 0.5
        "speculators",
        (r"(?P<order>\d+)",),
        content=("optimizer_state_dict.pt", "scheduler_state_dict.pt"),
        markers=("scheduler_state_dict.pt",),
        late=("val_metrics.json",),
    ),
    Layout(  # transformers Trainer._save_checkpoint
        "hf",
        (r"(?:tmp-)?checkpoint-(?P<step>\d+)",),
        begins=("config.json", "model*.safetensors", "pytorch_model*.bin", "adapter_*", "*.tmp", "*/*.safetensors"),
        content=("trainer_state.json", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state*.pth"),
        markers=("trainer_state.json",),
        stragglers=("rng_state_*.pth",),
    ),
    Layout(  # accelerate save_accelerator_state, diffusers examples
        "accelerate",
        (r"checkpoint_(?P<order>\d+)", r"checkpoint-(?P<step>\d+)", *ANY_NAME),
        begins=("model*.safetensors", "pytorch_model*.bin"),
        content=("random_states_*.pkl", "optimizer.bin", "optimizer_*.bin", "scheduler.bin", "sampler.bin"),
        markers=("random_states_*.pkl",),
        late=("custom_checkpoint_*.pkl",),
    ),
    Layout(  # SafeAILab/EAGLE traineagle3/main.py: DeepSpeed files inside
        "eagle",
        (r"state_(?P<order>\d+)",),
        content=("pytorch_model*.bin", "latest", "zero_to_fp32.py"),
        unmarked="stable",
    ),
    Layout(  # deepspeed runtime/engine.py save_checkpoint: rank 0 writes `latest` before the last barrier
        "deepspeed",
        (r"global_step(?P<step>\d+)", *ANY_NAME),
        begins=("*.pt",),
        content=("*_model_states.pt", "*_optim_states.pt"),
        beside=("latest",),
        stragglers=("*_model_states.pt", "*_optim_states.pt"),
    ),
    Layout(  # NVIDIA/Megatron-LM training/checkpointing.py
        "megatron",
        (r"iter_(?P<step>\d+)", r"release"),
        begins=BEGUN,
        content=("mp_rank_*/*", "common.pt", "metadata.json", "*.distcp", ".metadata"),
        beside=("latest_checkpointed_iteration.txt",),
        closing=("metadata.json",),
    ),
    Layout(  # SpecForge trainer, new: every file by rename, the link moves once all ranks agreed
        "specforge",
        (r".+-step(?P<step>\d+)",),
        content=("training_state_rank*.pt", "training_state.pt"),
        beside=("*-latest",),
        late=("README.md",),
    ),
    Layout(
        "specforge",
        (r"epoch_(?P<order>\d+)_step_(?P<step>\d+)",),
        content=("training_state.pt",),
        closing=("model*.safetensors", "config.json"),
    ),
    Layout(  # NeMo 2: `<name>-unfinished` stands beside it from first to last
        "nemo",
        (r".*step=(?P<step>\d+)(?!.*\.ckpt$).*",),
        content=("weights/*", "context/*"),
        unmarked="stable",
    ),
    Layout(  # Lightning with a sharded strategy: the .ckpt is a folder
        "lightning",
        (r".*step=(?P<step>\d+).*\.ckpt", r".*\.ckpt"),
        content=("meta.pt", ".metadata", "*.distcp", "latest", "checkpoint/*"),
        markers=("meta.pt", "latest"),
    ),
    Layout(
        "olmo-core",
        (r"step(?P<step>\d+)(?:-tmp)?",),
        content=(".metadata.json", "train/*", "model_and_optim/*"),
        markers=(".metadata.json",),
    ),
    Layout(  # verl: `not written` with async saves, so stable size is enough where no such file exists
        "verl",
        (r"global_step_(?P<step>\d+)",),
        content=("actor/*", "critic/*", "data.pt"),
        beside=("latest_checkpointed_iteration.txt",),
        unmarked="lone",
    ),
    Layout(  # orbax: the commit is a rename away from a temporary name; on object stores a file
        "orbax",
        (r"(?P<step>\d+)", r"(?P<step>\d+)\.orbax-checkpoint-tmp.*"),
        content=("_CHECKPOINT_METADATA", "commit_success.txt", "_METADATA", "items/*", "default/*"),
        markers=("commit_success.txt",),
        unmarked="stable",
    ),
    Layout(  # torch.distributed.checkpoint: torchtitan step-<N>, composer ep<e>-ba<b>, anything
        "dcp",
        (r"step-(?P<step>\d+)", r"ep(?P<order>\d+)-ba(?P<step>\d+).*", *ANY_NAME),
        content=("*.distcp", ".metadata", ".metadata.tmp"),
        markers=(".metadata",),
    ),
    Layout(  # torchtune: the last one has no recipe state
        "torchtune",
        (r"epoch_(?P<order>\d+)", r"step_(?P<step>\d+)"),
        content=("recipe_state.pt", "*model-*-of-*.safetensors", "adapter_model.*", "adapter_[0-9]*.pt"),
        markers=("recipe_state.pt",),
        unmarked="stable",
    ),
    Layout(  # litgpt copies the configurations after the weights
        "litgpt",
        (r"step-(?P<step>\d+)", r"final"),
        content=("lit_model.pth*",),
        unmarked="stable",
    ),
    Layout(  # save_pretrained and its like: a model without the means to go on
        "weights",
        (r"(?!checkpoint-\d+$)" + STEP_WORD, r"(?!checkpoint-\d+$).*"),
        content=("model*.safetensors", "pytorch_model*.bin", "adapter_model.*", "diffusion_pytorch_model*"),
        unmarked="stable",
        late=MODEL_CARD,
        loose=True,
    ),
    Layout(  # a folder whose name counts, with weights of an unknown writer in it
        "folder",
        (STEP_WORD, r"(?:.*[-_.])?epoch[-_=]?(?P<order>\d+)(?:[-_.].*)?"),
        content=WEIGHTS,
        unmarked="stable",
        loose=True,
    ),
    Layout(
        "lightning",
        (r".*step=(?P<step>\d+).*\.ckpt", r"last(?:-v\d+)?\.ckpt"),
        unmarked="stable",
        folder=False,
    ),
    Layout(  # mmengine, detectron2
        "file",
        (
            r"(?:best_.*_)?iter_(?P<step>\d+)\.pth",
            r"(?:best_.*_)?epoch_(?P<order>\d+)\.pth",
            r"model_(?P<step>\d+)\.pth",
        ),
        beside=("last_checkpoint",),
        unmarked="stable",
        folder=False,
    ),
    Layout(  # fairseq, timm, composer, ultralytics, open_clip, nanoGPT, Keras and all others
        "file",
        (
            r"checkpoint_(?P<order>\d+)_(?P<step>\d+)\.pt",
            r"checkpoint[-_]?(?P<order>\d+)\.(?:pt|pth\.tar)",
            r"ep(?P<order>\d+)-ba(?P<step>\d+)-rank\d+\.pt",
            r"(?:.*[-_.])?epoch[-_=]?(?P<order>\d+)\.\w+",
            STEP_WORD,
            r".*",
        ),
        beside=("last_checkpoint",),
        unmarked="stable",
        folder=False,
        loose=True,
    ),
)

# For the scenario player: path below the directory ({name}, and {step} where digits of it are needed), share of the
# bytes (0 = a small file), and what it is. In the order of a real writer; the marker comes last where there is one.
Written = tuple[str, int, Literal["data", "marker"]]

WRITING: dict[str, tuple[Written, ...]] = {
    "speculators": (
        ("{name}/config.json", 0, "data"),
        ("{name}/model.safetensors", 1, "data"),
        ("{name}/optimizer_state_dict.pt", 2, "data"),
        ("{name}/train_command.txt", 0, "data"),
        ("{name}/scheduler_state_dict.pt", 0, "data"),
        ("{name}/training_state.json", 0, "marker"),
    ),
    "hf": (
        ("{name}/config.json", 0, "data"),
        ("{name}/model-00001-of-00002.safetensors", 1, "data"),
        ("{name}/model-00002-of-00002.safetensors", 1, "data"),
        ("{name}/model.safetensors.index.json", 0, "data"),
        ("{name}/tokenizer.json", 0, "data"),
        ("{name}/training_args.bin", 0, "data"),
        ("{name}/optimizer.pt", 4, "data"),
        ("{name}/scheduler.pt", 0, "data"),
        ("{name}/rng_state_0.pth", 0, "data"),
        ("{name}/trainer_state.json", 0, "marker"),
    ),
    "deepspeed": (
        ("{name}/mp_rank_00_model_states.pt", 1, "data"),
        ("{name}/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt", 3, "data"),
        ("{name}/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", 3, "data"),
        ("latest", 0, "marker"),
    ),
    "megatron": (
        ("{name}/common.pt", 0, "data"),
        ("{name}/__0_0.distcp", 1, "data"),
        ("{name}/__0_1.distcp", 1, "data"),
        ("{name}/__1_0.distcp", 1, "data"),
        ("{name}/__1_1.distcp", 1, "data"),
        ("{name}/.metadata", 0, "data"),
        ("{name}/metadata.json", 0, "data"),
        ("latest_checkpointed_iteration.txt", 0, "marker"),
    ),
    "dcp": (
        ("{name}/__0_0.distcp", 1, "data"),
        ("{name}/__1_0.distcp", 1, "data"),
        ("{name}/.metadata", 0, "marker"),
    ),
    "lightning": (("{name}", 1, "data"),),
    "file": (("{name}", 1, "data"),),
}
SMALL_BYTES = 1024
