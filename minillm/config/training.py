"""What to learn from, how gradients become steps, and the runs of every stage."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from minillm.config.checks import check_at_least, check_choice
from minillm.config.model import ModelConfig


@dataclass(frozen=True)
class DataConfig:
    """Which text to learn from and how to cut it into tokens."""

    source: str = "tales"
    """tales: generated children's stories.  stdlib: the source of the running Python.  Else: a file or folder."""
    num_stories: int = 20_000
    """How many stories to write (tales only)."""
    vocab_size: int = 1024
    """Size of the tokenizer's vocabulary: 256 bytes, the merges, three special tokens."""
    pattern: str = "gpt2"
    """How text is split before merging: gpt2, cl100k, digits, or a regular expression."""
    vocab_conversations: int = 0
    """How many generated conversations the tokenizer learns from too, so that words of questions become tokens."""
    val_fraction: float = 0.05
    """Share of the documents that is kept for validation, at least one document."""
    seed: int = 0
    """Chooses the stories and which documents validate."""

    def __post_init__(self) -> None:
        check_at_least("data.num_stories", self.num_stories, 2)
        check_at_least("data.vocab_size", self.vocab_size, 259)
        check_at_least("data.vocab_conversations", self.vocab_conversations, 0)
        check_at_least("data.seed", self.seed, 0)
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"data.val_fraction must be between 0 and 1, exclusive: got {self.val_fraction}")


@dataclass(frozen=True)
class OptimConfig:
    """How gradients become steps."""

    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw: for every parameter.  muon: for the matrices inside blocks, adamw for the rest."""
    learning_rate: float = 3e-3
    """Peak learning rate of AdamW."""
    muon_learning_rate: float = 0.02
    """Peak learning rate of Muon."""
    beta1: float = 0.9
    """Decay of the running mean of gradients."""
    beta2: float = 0.95
    """Decay of the running mean of squared gradients."""
    eps: float = 1e-8
    """Keeps AdamW's division finite."""
    weight_decay: float = 0.1
    """Decoupled decay of the matrices; biases and norm weights never decay."""
    clip_norm: float = 1.0
    """Gradients longer than this are scaled down to it; 0: never."""
    schedule: Literal["cosine", "wsd"] = "cosine"
    """cosine: warm-up then half a cosine.  wsd: warm-up, stable, then linear decay."""
    warmup_steps: int = 50
    """Steps of linear warm-up; the first step has a positive rate already."""
    decay_fraction: float = 0.2
    """Share of the steps that decay (wsd)."""
    final_fraction: float = 0.1
    """Learning rate at the end, as a share of the peak."""

    def __post_init__(self) -> None:
        check_choice("optim.optimizer", self.optimizer, ("adamw", "muon"))
        check_choice("optim.schedule", self.schedule, ("cosine", "wsd"))
        check_at_least("optim.warmup_steps", self.warmup_steps, 0)
        for name in ("learning_rate", "muon_learning_rate", "weight_decay", "clip_norm"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"optim.{name} must not be negative: got {getattr(self, name)}")
        if not self.eps > 0:
            raise ValueError(f"optim.eps must be positive: got {self.eps}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"optim.{name} must be in [0, 1): got {getattr(self, name)}")
        for name in ("decay_fraction", "final_fraction"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"optim.{name} must be in [0, 1]: got {getattr(self, name)}")


@dataclass(frozen=True)
class LoopConfig:
    """What every training run has, whatever it trains on: its length, its pace and where it goes."""

    run: Path = Path("runs/train")
    """Folder of the run: settings, tokens, checkpoint, metrics, plots."""
    steps: int = 1000
    """Number of optimizer steps."""
    batch_size: int = 16
    """Rows per step."""
    micro_batch_size: int = 4
    """B: rows that run through the model together.  A step's micro-batches add up, every token weighing the same."""
    threads: int = 0
    """Micro-batches that run at the same time; 0: one per core.  The result does not depend on it."""
    seed: int = 0
    """Chooses initial weights, the order of the data and dropout masks."""
    eval_every: int = 100
    """Steps between validations; 0: only at the end."""
    eval_tokens: int = 20_000
    """About how many validation tokens to score each time (all of them at the end)."""
    sample_every: int = 200
    """Steps between printed samples; 0: never."""
    save_every: int = 200
    """Steps between checkpoints; 0: only at the end."""
    recompute: bool = False
    """Keep only each block's input and run the block again in the backward pass: less memory, more time."""
    backend: Literal["numpy", "cpu"] = "cpu"
    """Which implementation of the ops runs."""
    optim: OptimConfig = field(default_factory=OptimConfig)

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "micro_batch_size", "eval_tokens"):
            check_at_least(f"train.{name}", getattr(self, name), 1)
        for name in ("seed", "threads", "eval_every", "sample_every", "save_every"):
            check_at_least(f"train.{name}", getattr(self, name), 0)
        check_choice("train.backend", self.backend, ("numpy", "cpu"))


@dataclass(frozen=True)
class TrainConfig(LoopConfig):
    """A pretraining run: everything that decides what comes out."""

    list_steps: int = 0
    """Steps at the beginning that read lists of pairs instead of the text; later batches keep one row of them.  A model
    learns in a few hundred of them to tell what stood beside a token, and otherwise may not for a long time."""
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("train.list_steps", self.list_steps, 0)
        if self.list_steps and self.batch_size == 1:
            raise ValueError("a batch with a row of lists and one of text has at least 2 rows: train.batch_size is 1")


LORA_TARGETS = {
    "query-value": ("query", "value"),
    "attention": ("query", "key", "value", "output"),
    "all": ("query", "key", "value", "output", "gate", "up", "down"),
}


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters: train small additions to frozen matrices."""

    rank: int = 0
    """R: rank of what is added to each matrix; 0: no adapters, every weight is trained."""
    alpha: float = 16.0
    """The addition is multiplied by alpha / rank."""
    targets: Literal["query-value", "attention", "all"] = "all"
    """Which matrices get one: the paper's two, the four of attention, or those of the feed-forward layer too."""
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped while training; the frozen matrices see all of theirs."""

    def __post_init__(self) -> None:
        check_at_least("lora.rank", self.rank, 0)
        check_choice("lora.targets", self.targets, tuple(LORA_TARGETS))
        if not 0 < self.alpha < float("inf"):
            raise ValueError(f"lora.alpha must be positive and finite: got {self.alpha}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"lora.dropout must be in [0, 1): got {self.dropout}")

    @property
    def matrices(self) -> tuple[str, ...]:
        """The names of the matrices that get an adapter, in every block that has them."""
        return LORA_TARGETS[self.targets]


@dataclass(frozen=True)
class SFTConfig(LoopConfig):
    """Supervised fine-tuning: teach a pretrained model to answer, by conversations."""

    run: Path = Path("runs/sft")
    """Folder of the new run."""
    base: Path = Path("runs/train")
    """Folder of the run whose model is taught; it is not changed."""
    data: str = "tasks"
    """tasks: generated questions with exact answers.  Else: a file of conversations, JSON Lines."""
    num_conversations: int = 20_000
    """How many conversations to generate (tasks only)."""
    val_fraction: float = 0.05
    """Share of the conversations of a file that is kept for validation, at least one."""
    num_val: int = 200
    """How many conversations to validate on, at most."""
    last_only: bool = False
    """Teach the last answer of a conversation alone, not every answer."""
    packing: bool = True
    """Several conversations to a row, none seeing another; else one to a row, and padding."""
    too_long: Literal["error", "truncate", "drop"] = "error"
    """What to do with a conversation that is longer than the context."""
    chat_template: str = ""
    """A file with a Jinja2 chat template, by which the model is to read conversations; else the base's, or ChatML."""
    lora: LoraConfig = field(default_factory=LoraConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("sft.num_conversations", self.num_conversations, 1)
        check_at_least("sft.num_val", self.num_val, 1)
        check_choice("sft.too_long", self.too_long, ("error", "truncate", "drop"))
        if not 0 < self.val_fraction < 1:
            raise ValueError(f"sft.val_fraction must be between 0 and 1, exclusive: got {self.val_fraction}")


@dataclass(frozen=True)
class DistilConfig(SFTConfig):
    """Distillation: a student learns from conversations and from what its teacher finds probable there."""

    run: Path = Path("runs/distil")
    """Folder of the new run."""
    teacher: Path = Path("runs/sft")
    """Folder of the run that teaches; of any size, but with the same vocabulary."""
    divergence: Literal["forward", "reverse", "jensen-shannon"] = "forward"
    """How far the student is from its teacher: forward KL covers all that the teacher may say, reverse picks a mode."""
    tau: float = 2.0
    """Temperature of both: above 1 the teacher's less likely tokens count more."""
    alpha: float = 0.5
    """Weight of the teacher; what is left is that of the answers themselves."""
    beta: float = 0.5
    """The teacher's share of the mixture (jensen-shannon)."""
    top_k: int = 0
    """Keep the teacher's k likeliest tokens of every row on disk and do without it (forward); 0: it reads along."""
    hidden_weight: float = 0.0
    """Weight of the distance between hidden states before the final norm, through a learned projection; 0: none."""
    sequence_level: bool = False
    """The teacher answers all questions before, and the student learns its answers; with alpha = 0, those alone."""
    answer_temperature: float = 0.0
    """Of the teacher's answers (sequence_level); 0: always the likeliest token."""
    on_policy: float = 0.0
    """Share of the rows in which the student answers by itself, and the teacher judges each token; 0: none, 1: all."""
    answer_tokens: int = 64
    """Answers that a model writes are cut after so many tokens."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least("distil.top_k", self.top_k, 0)
        check_at_least("distil.answer_tokens", self.answer_tokens, 1)
        if not 0 <= self.hidden_weight < float("inf"):
            raise ValueError(f"distil.hidden_weight must be 0 or positive: got {self.hidden_weight}")
        if not 0 <= self.answer_temperature < float("inf"):
            raise ValueError(f"distil.answer_temperature must be 0 or positive: got {self.answer_temperature}")
        if not 0 <= self.on_policy <= 1:
            raise ValueError(f"distil.on_policy, a share of the rows, must be 0 to 1: got {self.on_policy}")
        if (self.top_k or self.on_policy) and self.alpha == 0:
            raise ValueError("distil.top_k and on_policy need the teacher, which alpha = 0 ignores; raise alpha")
        if self.top_k and self.divergence != "forward":
            raise ValueError(
                f"distil.top_k keeps too little of the teacher for the {self.divergence} divergence, which weighs all "
                "that the student may say; use the forward one, or top_k = 0"
            )
        if self.top_k and self.hidden_weight:
            raise ValueError(
                "distil.top_k keeps what the teacher says, not its hidden states; use hidden_weight = 0, or top_k = 0"
            )
        if self.top_k and self.on_policy:
            raise ValueError(
                "distil.top_k knows the teacher's view of given answers alone, not of the student's own; use "
                "on_policy = 0, or top_k = 0"
            )
