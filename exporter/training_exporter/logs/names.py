"""Names of metrics: one spelling, which split they belong to, and which are timers, counters or settings."""

from __future__ import annotations

import re
from functools import lru_cache

from training_exporter.model import Split

_SPLIT_WORDS: dict[str, Split] = {
    "val": "val",
    "valid": "val",
    "validate": "val",
    "validation": "val",
    "eval": "val",
    "evaluation": "val",
    "dev": "val",
    "test": "test",
    "train": "train",
    "training": "train",
    "tr": "train",
    "trn": "train",
}
_PREFIX = re.compile(
    r"^(?:metrics/)?(train(?:ing)?|trn?(?=_)|val(?:id(?:ate|ation)?)?|eval(?:uation)?|dev|test)(?:[/_.\s-]+|(?=\())(?=\w)"
)
_INFIX = re.compile(
    r"(?:[/_.-](val(?:id(?:ation)?)?|eval|test)(?=[/_.@-]|$)|\s(val|validation|eval|test)(?=[\s/_.]|$))"
)
_OWNER = re.compile(r"'s(?=\s)")  # LightGBM: `valid_1's auc`
_SET = re.compile(
    r"\s+(?:on|over)\s+(?:the\s+)?(val(?:id(?:ation)?)?|eval|dev|test|train(?:ing)?)(?:\s?set|\s?data\w*)?$"
)
_WORD = re.compile(r"[a-z0-9]+")
MAX_REMEMBERED = 1024  # names; a log has dozens
MAX_NAME = 200  # characters of a name as printed, the keys above it included

# Durations, rates, sizes and bookkeeping: worth nothing as quality.
_AUX = re.compile(
    r"""(?:^|_)(?:
      (?:run)?time|times|timing|timings|seconds|secs?|ms|duration|dur|elapsed|eta|remaining|hours|minutes
      |per_sec(?:ond)?|per_s|\w*samplespersec|it_s|iter_s|img_s|tok_s|toks|tok_sec|samples_sec|tokens_sec|sec
      |wps|ups|ips|wpb|bsz|wall|tps|tflops?|tflop_s\w*|flops?|mfu|hfu|throughput|speed|fps|gpu_mem|bandwidth
      |mem|memory|max_mem|memallocated|maxmemallocated|vram|gb|mb|gib|mib|ram|cpu|gpus?|nodes?|world_size
      |num_tokens|parameters|params|tokens|samples|examples|images|instances|num_input_tokens_seen|total_tokens|seen
      |lr|learning_rate|base_lr|lrs|weight_decay|wd|momentum|mom|betas?|eps|loss_scale|scale|scaler
      |v_num|version|seed|pid|port|ts|timestamp|date|datetime|id|job|host|size|layout|n_shot
      |patience|threshold|window|bucket|buckets|worker|workers|num_workers|gnorm|grad_norm|skipped|stalled|sents?|sen|stderr
      |node|world|percent|percentage|progress|count|counts|total|totals|delta|data|batch|fetch_frac|total_weights
      |fold|folds|trial|beam|tgs|sgs|pow|power|cache|reqs?|queue|usage|(?:update|updt|dataloading|step|eval|ep|save|load|forward|backward|rollout)_s
    )(?:_|$)""",
    re.VERBOSE,
)
# A rate or a duration, whatever it is the rate of: `loss_train_items_per_sec`.
_RATE = re.compile(r"(?:_per_s(?:ec(?:ond)?)?|_time|_ms)$")
_AUX_PREFIX = re.compile(
    r"^(?:clip$|s$|i$|t$|n$|idx$|index$|run$|(?:local_|node_|global_)?rank$|(?:perf|profile|profiling|timeperf|timing|timers?|throughput|system|memory|"
    r"time|optim|gpu)(?:_|/|$))"
)
# What a run was told, which has the look of a metric: eval_steps, val_check_interval, test_size.
_SETTING = re.compile(
    r"(?:^|_)(?:interval|steps?|updates|iters?|iterations?|batch_?size|size|freq|frequency|every|ratio|split|samples|dataset|"
    r"datasets|strategy|num|n|max|min|epochs?|episodes|path|dir|directory|file|files|delay|accumulation|length|len|limit|"
    r"batches|workers|fraction|on_start|only|enabled|tokens|shards?|first|interval\w*|prompts?|subset|seed|k)$"
)
# How long what a model read or wrote is. Not `accept_len` and `gen_len`, which are reported as results.
_LENGTH = re.compile(
    r"(?:^|_)(?:seq_?lens?|(?:prompt|response|completion|sequence|input|output)s?_(?:lens?|lengths?))"
    r"(?:_(?:mean|avg|median|std|min|max|p\d+))?$"
)
_QUALITY = re.compile(
    r"^cost$|\w*(?:loss|accuracy|crossentropy|perplexity|acc|ppl)(?:_|\d|$)|(?:^|_)(?:loss\w*|acc\d*|accuracies|"
    r"ppl\w*|perplexity\w*|bpb|bpc|bleu\w*|rouge\w*|meteor|chrf\w*|ter|wer|cer|f1\w*|auc\w*|auroc|auprc|"
    r"map\d*|ap(?:\d+|s|m|l|r|c|f)?|ar\d*|precision\w*|recall\w*|sensitivity|specificity|iou\w*|miou|dice\w*|"
    r"psnr|ssim|lpips|fid\d*|kid|inception_score|mse|mae|rmse|mape|smape|error\w*|err\d*|r2|kl\w*|nll\w*|elbo|ece|"
    r"em|exact\w*|mrr\w*|ndcg\w*|hits?(?:_\d+)?|top_?\d+\w*|scores?\w*|rewards?\w*|win_?rate|eal|accept|accept_\w+|"
    r"acceptance\w*|entropy|bertscore\w*|corr\w*|mcc|pearson\w*|spearman\w*|kappa|metrics?\w*|"
    r"objective|margins?|judge\w*|pass_?\d*|tau\w*|cider|spice|returns?|mean_\d+|best_\d+|maj_\d+|likelihood|"
    r"logprobs?\w*|logps\w*|r_\d+|confidence\w*|brier|calibration|cosine\w*|similarity|distance|fitness|map50_95|"
    r"pck\w*|pq|nme|epe|d1|d\d|abs_rel|mos|pesq|stoi|si_?sdr|sdr|jaccard|hausdorff|gen_len|success_rate)(?:_|$)"
)
_LOSS = re.compile(r"(?:^|_)\w*loss(?:es)?(?:_|$|\d)|(?:^|_)(?:nll|elbo)(?:_|$)")
# How a loss is scaled or made up is none.
_OF_LOSS = re.compile(
    r"loss(?:es)?_(?:\w+_)?(?:scale\w*|scaling|weights?|coefs?|coeffs?|coefficients?|fn|func\w*|type|ratio|alpha|beta|gamma|"
    r"lambda|multiplier|factor|smoothing|decay|reduction|threshold|target)$"
)
GRADIENTS = frozenset({"grad_norm", "gnorm", "global_grad_norm"})
RATES = frozenset({"lr", "learning_rate", *GRADIENTS})  # printed beside a loss, of training only
# Scores that only an evaluation computes; a line of nothing else is a result even where nothing announces it.
_EVALUATION_ONLY = re.compile(
    r"^(?:rouge|bleu|sacrebleu|meteor|chrf|wer|cer|bertscore|exact_match|em$|map|ndcg|mrr|cider|spice|fid|auroc|auc|"
    r"acc_1$|acc_5$|top1|top5|precision|recall|f1|hits?_|iou|miou|dice|psnr|ssim|accuracy|mcc|pearson|spearman)"
)


@lru_cache(maxsize=MAX_REMEMBERED)
def normalise(name: str) -> tuple[str, Split | None]:
    """`val/full_acc_0_epoch` -> (`full_acc_0`, "val"): lower case, split prefix and `_epoch` off, only [a-z0-9_].

    The split is None where the name says none. An empty name means that nothing is left (a bare `val`).
    """
    text = _OWNER.sub("", name.strip().lower())
    if len(text) > MAX_NAME:
        return "", None
    split: Split | None = None
    if match := _SET.search(text):
        split, text = _SPLIT_WORDS[match[1]], text[: match.start()]
    if match := _PREFIX.match(text):
        split, text = _SPLIT_WORDS[match[1]], text[match.end() :]
        if (again := _PREFIX.match(text)) and _SPLIT_WORDS[again[1]] == split:  # `Validation val_loss`
            text = text[again.end() :]
        text = text.removeprefix("set ")  # `Test set loss`
    elif text in _SPLIT_WORDS:
        return "", _SPLIT_WORDS[text]
    elif split is None and (match := _INFIX.search(text)):
        split = _SPLIT_WORDS[match[1] or match[2]]
    elif split is None and text.endswith((" train", "_train", " training")):
        split, text = "train", text.rpartition("train")[0]
    if text.startswith("metrics/eval/"):
        split, text = "val", text[len("metrics/eval/") :]
    elif text.startswith("metrics/"):
        text = text[len("metrics/") :]
    clean = "_".join(_WORD.findall(text))
    clean = clean.removesuffix("_epoch")
    return clean, split


@lru_cache(maxsize=MAX_REMEMBERED)
def is_aux(name: str) -> bool:
    """Whether a normalised name is a timer, a rate, a size or a count, not a quality."""
    return bool(_AUX_PREFIX.match(name) or _RATE.search(name) or (_AUX.search(name) and not is_loss(name)))


@lru_cache(maxsize=MAX_REMEMBERED)
def is_setting(name: str) -> bool:
    """Whether a normalised name is a setting of the evaluation, not its result."""
    return bool(_OF_LOSS.search(name) or (_SETTING.search(name) and not _QUALITY.search(name)))


@lru_cache(maxsize=MAX_REMEMBERED)
def is_length(name: str) -> bool:
    """Whether a normalised name is the length of a text or a batch: a size, which is no result."""
    return bool(_LENGTH.search(name))


@lru_cache(maxsize=MAX_REMEMBERED)
def is_quality(name: str) -> bool:
    """Whether a normalised name is known for a measure of quality."""
    return bool(_QUALITY.search(name)) and not is_aux(name) and not _OF_LOSS.search(name)


@lru_cache(maxsize=MAX_REMEMBERED)
def is_loss(name: str) -> bool:
    """Whether a normalised name is a loss, whose value must be finite."""
    return bool(_LOSS.search(name)) and not _OF_LOSS.search(name)


@lru_cache(maxsize=MAX_REMEMBERED)
def is_evaluation_only(name: str) -> bool:
    """Whether nobody would print this score of a training batch."""
    return bool(_EVALUATION_ONLY.match(name))
