"""Metrics in training and in evaluation, over device calls of three micro-batches and an incomplete last one.

A batch in Ignite is a micro-batch on the IPU; the values of an epoch must agree all the same.
"""

from __future__ import annotations

import importlib.util
import types
from typing import Any, Callable, Dict

import torch
from ignite.engine import Events
from ignite.metrics.metric import RunningBatchWise
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.ignite.side import BATCH, follow, metrics, stand_ins
from tests.ignite.table import DIFFERS, HOST, row

_FEATURES = 5
Factories = Dict[str, Callable[[], Any]]


def _x(samples=45):
    return torch.randn(samples, _FEATURES, generator=torch.Generator().manual_seed(3))


def _y(x, kind):
    noise = torch.randn(len(x), 3, generator=torch.Generator().manual_seed(4))
    scores = x[:, :3] + 0.5 * noise
    return {
        "classes": lambda: scores.argmax(1),
        "binary": lambda: (scores[:, :1] > 0).float(),
        "labels": lambda: (scores > 0).float(),
        "number": lambda: scores[:, 0].abs() + 0.5,
        "numbers": lambda: scores.abs() + 0.5,
    }[kind]()


def _model(kind):
    torch.manual_seed(1)
    heads = {
        "classes": [nn.Linear(_FEATURES, 3)],
        "binary": [nn.Linear(_FEATURES, 1), nn.Sigmoid()],
        "labels": [nn.Linear(_FEATURES, 3), nn.Sigmoid()],
        "number": [nn.Linear(_FEATURES, 1), nn.Softplus(), nn.Flatten(0)],
        "numbers": [nn.Linear(_FEATURES, 3), nn.Softplus()],
    }
    return nn.Sequential(*heads[kind])


_LOSSES = {
    "classes": nn.CrossEntropyLoss,
    "binary": nn.BCELoss,
    "labels": nn.BCELoss,
    "number": nn.MSELoss,
    "numbers": nn.MSELoss,
}


def measure(side, kind: str, factories: Factories, *, micro_batches: int = 3, evaluate_only: bool = False) -> Any:
    """Return the metrics of an evaluation, and of two epochs of training with its own predictions."""
    x = _x()
    loader = DataLoader(TensorDataset(x, _y(x, kind)), batch_size=BATCH)
    model = _model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    several = {} if side.native else {"device_iterations": micro_batches}
    trainer = side.trainer(
        model,
        optimizer,
        _LOSSES[kind](),
        output_transform=lambda x, y, y_pred, loss: (y_pred, y),
        **several,
    )
    evaluator = side.evaluator(model, {name: make() for name, make in factories.items()}, **several)
    records = [evaluator.run(loader).metrics.copy()]
    if evaluate_only:
        return records
    for name, make in factories.items():
        make().attach(trainer, name)
    # 48 samples in place of 45: training drops samples that do not fill a call; Ignite drops none.
    x = _x(48)
    full = DataLoader(TensorDataset(x, _y(x, kind)), batch_size=BATCH)
    follow(trainer, Events.EPOCH_COMPLETED, lambda engine: records.append(engine.state.metrics.copy()))
    trainer.run(full, max_epochs=2)
    return records


@row(
    "Accuracy", "Loss", "Precision", "Recall", "Fbeta", "TopKCategoricalAccuracy", "ConfusionMatrix", "IoU", "mIoU",
    "DiceCoefficient", "JaccardIndex", "ClassificationReport", "CohenKappa", "MatthewsCorrCoef", "Entropy",
)  # fmt: skip
def classification(side):
    matrix = lambda: metrics.ConfusionMatrix(3)  # noqa: E731
    hard = lambda output: (output[0].argmax(1), output[1])  # noqa: E731
    factories = {
        "Accuracy": metrics.Accuracy,
        "Loss": lambda: metrics.Loss(nn.CrossEntropyLoss()),
        "Precision": lambda: metrics.Precision(average="macro"),
        "Recall": metrics.Recall,
        "Fbeta": lambda: metrics.Fbeta(1.5),
        "TopK": lambda: metrics.TopKCategoricalAccuracy(2),
        "ConfusionMatrix": matrix,
        "IoU": lambda: metrics.IoU(matrix()),
        "mIoU": lambda: metrics.mIoU(matrix()),
        "Dice": lambda: metrics.DiceCoefficient(matrix()),
        "Jaccard": lambda: metrics.JaccardIndex(matrix()),
        "Report": lambda: metrics.ClassificationReport(output_dict=True),
        "CohenKappa": lambda: metrics.CohenKappa(output_transform=hard),
        "Matthews": lambda: metrics.MatthewsCorrCoef(output_transform=hard),
        "Entropy": lambda: metrics.Entropy(),
    }
    return measure(side, "classes", {name: make for name, make in factories.items() if _exists(name, make)})


def _exists(name, make):
    try:
        make()
    except AttributeError:
        return False  # came with a later release
    return True


@row("AveragePrecision", "PrecisionRecallCurve", "ROC_AUC", "RocCurve")
def binary(side):
    integers = lambda output: (output[0], output[1].long())  # noqa: E731
    return measure(
        side,
        "binary",
        {
            "AveragePrecision": lambda: metrics.AveragePrecision(output_transform=integers),
            "PrecisionRecallCurve": lambda: metrics.PrecisionRecallCurve(output_transform=_flat),
            "ROC_AUC": lambda: metrics.ROC_AUC(output_transform=integers),
            "RocCurve": lambda: metrics.RocCurve(output_transform=_flat),
            "thresholded": lambda: metrics.Accuracy(output_transform=lambda output: (output[0].round(), output[1])),
        },
    )


def _flat(output):
    return output[0].flatten(), output[1].flatten().long()


@row("MultiLabelConfusionMatrix", "MeanAveragePrecision", note="`is_multilabel=True` of other metrics, too")
def multilabel(side):
    def hard(output):
        return output[0].round().long(), output[1].long()

    factories = {
        "MultiLabel": lambda: metrics.MultiLabelConfusionMatrix(3, output_transform=hard),
        "accuracy": lambda: metrics.Accuracy(is_multilabel=True, output_transform=hard),
        "precision": lambda: metrics.Precision(is_multilabel=True, average=True, output_transform=hard),
        "MeanAveragePrecision": lambda: metrics.MeanAveragePrecision(
            is_multilabel=True, output_transform=lambda output: (output[0], output[1].long())
        ),
    }
    return measure(side, "labels", {name: make for name, make in factories.items() if _exists(name, make)})


@row(
    "MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError", "CanberraMetric", "FractionalAbsoluteError",
    "FractionalBias", "GeometricMeanAbsoluteError", "GeometricMeanRelativeAbsoluteError", "KendallRankCorrelation",
    "ManhattanDistance", "MaximumAbsoluteError", "MeanAbsoluteRelativeError", "MeanError", "MeanNormalizedBias",
    "MedianAbsoluteError", "MedianAbsolutePercentageError", "MedianRelativeAbsoluteError", "PearsonCorrelation",
    "R2Score", "SpearmanRankCorrelation", "WaveHedgesDistance",
)  # fmt: skip
def regression(side):
    package = metrics.regression

    names = [name for name, value in vars(package).items() if isinstance(value, type)]
    factories = {name: getattr(package, name) for name in names}
    for name in ("MeanAbsoluteError", "MeanSquaredError", "RootMeanSquaredError"):
        factories[name] = getattr(metrics, name)
    return measure(side, "number", factories)


@row(
    "MeanPairwiseDistance",
    "CosineSimilarity",
    "KLDivergence",
    "JSDivergence",
    "Frequency",
    note="`Frequency` counts samples per second of all calls",
)
def distances(side):
    factories = {
        "MeanPairwiseDistance": lambda: metrics.MeanPairwiseDistance(),
        "CosineSimilarity": lambda: metrics.CosineSimilarity(),
        "KLDivergence": lambda: metrics.KLDivergence(output_transform=_normalised),
        "JSDivergence": lambda: metrics.JSDivergence(output_transform=_normalised),
    }
    records = measure(side, "numbers", {name: make for name, make in factories.items() if hasattr(metrics, name)})
    evaluator = side.evaluator(
        _model("numbers"), {"frequency": metrics.Frequency(output_transform=lambda output: len(output[0]))}
    )
    x = _x()
    evaluator.run(DataLoader(TensorDataset(x, _y(x, "numbers")), batch_size=BATCH))
    return records, evaluator.state.metrics["frequency"] > 0


def _normalised(output):
    return output[0], output[1].softmax(dim=1)


@row(
    "HSIC",
    "MaximumMeanDiscrepancy",
    "MutualInformation",
    support=DIFFERS,
    note="defined on whole batches: natively on what a batch is, here on the samples of one device call",
)
def per_batch(side):
    factories = {
        "HSIC": lambda: metrics.HSIC(),
        "MaximumMeanDiscrepancy": lambda: metrics.MaximumMeanDiscrepancy(),
        "MutualInformation": lambda: metrics.MutualInformation(),
    }
    present = {name: make for name, make in factories.items() if hasattr(metrics, name)}
    single = measure(side, "numbers", {n: m for n, m in present.items() if n != "MutualInformation"}, micro_batches=1)
    logits = measure(side, "classes", {n: m for n, m in present.items() if n == "MutualInformation"}, micro_batches=1)
    return single, logits


@row("EpochMetric", "MetricsLambda", "MetricGroup", "Average", "GeometricAverage", "VariableAccumulation", "Metric")
def composed(side):
    class Largest(metrics.Metric):
        def reset(self):
            self._largest = float("-inf")

        def update(self, output):
            self._largest = max(self._largest, float(output[0].max()))

        def compute(self):
            return self._largest

    def add_all(total, value):
        return total + value.double().sum()

    precision, recall = metrics.Precision(average=False), metrics.Recall(average=False)
    each = lambda output: output[0].softmax(1).amax(1, keepdim=True)  # noqa: E731
    factories = {
        "EpochMetric": lambda: metrics.EpochMetric(lambda p, y: float((p.argmax(1) == y).double().std())),
        "MetricsLambda": lambda: (precision * recall * 2 / (precision + recall + 1e-9)).mean(),
        "MetricGroup": lambda: metrics.MetricGroup({"a": metrics.Accuracy(), "l": metrics.Loss(nn.CrossEntropyLoss())}),
        "Average": lambda: metrics.Average(output_transform=each),
        "Geometric": lambda: metrics.GeometricAverage(output_transform=each),
        "Variable": lambda: metrics.VariableAccumulation(add_all, output_transform=each),
        "own": Largest,
    }
    factories = {name: make for name, make in factories.items() if _exists(name, make)}
    return measure(side, "classes", factories, evaluate_only=True), measure(
        side, "classes", {name: make for name, make in factories.items() if name != "MetricsLambda"}
    )


@row(
    "RunningAverage",
    support=DIFFERS,
    note="an average over device calls: `alpha` is per call; use `alpha**n` when a call holds n of the native batches",
)
def running_average(side):
    model = _model("classes")
    trainer = side.trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), nn.CrossEntropyLoss())
    running = metrics.RunningAverage(output_transform=lambda output: output, alpha=0.8)
    running.attach(trainer, "loss", usage=RunningBatchWise())
    x = _x(48)
    seen = follow(trainer, Events.ITERATION_COMPLETED, lambda engine: engine.state.metrics["loss"])
    trainer.run(DataLoader(TensorDataset(x, _y(x, "classes")), batch_size=BATCH), max_epochs=2)
    accuracy = metrics.RunningAverage(metrics.Accuracy(), alpha=0.5)
    evaluator = side.evaluator(model, {"accuracy": accuracy})
    return seen, evaluator.run(DataLoader(TensorDataset(x, _y(x, "classes")), batch_size=BATCH)).metrics


class _Painter(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, image):
        return torch.sigmoid(self.conv(image))


@row(
    "PSNR",
    "SSIM",
    "FID",
    "InceptionScore",
    note="feature extractors run on the host, on images that the device returned",
)
def images(side):
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.rand(45, 3, 16, 16, generator=generator), torch.rand(45, 3, 16, 16, generator=generator))
    features = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    factories = {
        "PSNR": metrics.PSNR(data_range=1.0),
        "SSIM": metrics.SSIM(data_range=1.0),
        "FID": metrics.FID(num_features=12, feature_extractor=features),
        "InceptionScore": metrics.InceptionScore(
            num_features=12, feature_extractor=features, output_transform=lambda output: output[0]
        ),
    }
    several = {} if side.native else {"device_iterations": 2}
    return side.evaluator(_Painter(), factories, **several).run(DataLoader(data, batch_size=BATCH)).metrics


@row(
    "Perplexity",
    "Bleu",
    "Rouge",
    "RougeN",
    "RougeL",
    "CharacterErrorRate",
    note="decode the predictions in `output_transform`",
)
def language(side):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    generator = torch.Generator().manual_seed(6)
    tokens = torch.randint(0, 9, (21, 7), generator=generator)
    words = list("abcdefghi")

    def decoded(output):
        said, meant = output[0].argmax(-1).tolist(), output[1].tolist()
        return [[words[i] for i in line] for line in said], [[[words[i] for i in line]] for line in meant]

    def strings(output):
        said, meant = decoded(output)
        return ["".join(line) for line in said], ["".join(line[0]) for line in meant]

    factories = {
        "Bleu": metrics.Bleu(ngram=2, smooth="smooth1", output_transform=decoded),
        "Rouge": metrics.Rouge(variants=["L", 2], multiref="best", output_transform=decoded),
        "RougeN": metrics.RougeN(ngram=1, output_transform=decoded),
        "RougeL": metrics.RougeL(output_transform=decoded),
    }
    if hasattr(metrics, "Perplexity"):
        factories["Perplexity"] = metrics.Perplexity(
            output_transform=lambda output: (output[0].transpose(1, 2), output[1])
        )
    if hasattr(metrics, "CharacterErrorRate"):
        factories["CharacterErrorRate"] = metrics.CharacterErrorRate(output_transform=strings)
    several = {} if side.native else {"device_iterations": 2}
    return (
        side.evaluator(model, factories, **several).run(DataLoader(TensorDataset(tokens, tokens), batch_size=4)).metrics
    )


@row("HitRate", "NDCG")
def ranking(side):
    factories = {"HitRate": lambda: metrics.HitRate(top_k=[1, 2], output_transform=_relevance)}
    factories["NDCG"] = lambda: metrics.NDCG(top_k=[2], output_transform=_relevance)
    if not hasattr(metrics, "HitRate"):
        return "not in this release"
    return measure(side, "labels", factories)


def _relevance(output):
    return output[0], output[1]


@row(
    "ObjectDetectionAvgPrecisionRecall",
    "CommonObjectDetectionMetrics",
    "coco_tensor_list_to_dict_list",
    note="boxes are put together in `output_transform`",
)
def detection(side):
    if not hasattr(metrics, "ObjectDetectionAvgPrecisionRecall"):
        return "not in this release"
    x = _x()
    targets = _y(x, "numbers")

    def boxes(output):
        def box(values):
            return torch.stack([values[0], values[1], values[0] + 1, values[1] + 1]).unsqueeze(0)

        said = [
            {"bbox": box(p), "scores": p[2:].sigmoid(), "labels": torch.zeros(1, dtype=torch.long)} for p in output[0]
        ]
        meant = [
            {"bbox": box(t), "iscrowd": torch.zeros(1), "labels": torch.zeros(1, dtype=torch.long)} for t in output[1]
        ]
        return said, meant

    several = {} if side.native else {"device_iterations": 2}
    with stand_ins({} if importlib.util.find_spec("torchvision") else _stand_in_for_torchvision()):
        factories = {
            "one": metrics.ObjectDetectionAvgPrecisionRecall(num_classes=1, output_transform=boxes),
            "common": metrics.CommonObjectDetectionMetrics(num_classes=1, output_transform=boxes),
        }
        run = side.evaluator(_model("numbers"), factories, **several)
        return run.run(DataLoader(TensorDataset(x, targets), batch_size=BATCH)).metrics


def _stand_in_for_torchvision():
    """Return modules with the two functions that the metric takes from torchvision, which may not be installed."""

    def box_area(boxes):
        return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])

    def box_inter_union(one, other):
        low = torch.max(one[:, None, :2], other[:, :2])
        high = torch.min(one[:, None, 2:], other[:, 2:])
        inter = (high - low).clamp(min=0).prod(dim=2)
        return inter, box_area(one)[:, None] + box_area(other) - inter

    boxes = types.ModuleType("torchvision.ops.boxes")
    boxes.box_area, boxes._box_inter_union = box_area, box_inter_union
    parents = {name: types.ModuleType(name) for name in ("torchvision", "torchvision.ops")}
    return {**parents, boxes.__name__: boxes}


@row("CalinskiHarabaszScore", "DaviesBouldinScore", "SilhouetteScore")
def clustering(side):
    try:
        from ignite.metrics import clustering as package
    except ImportError:
        return "not in this release"
    names = ("CalinskiHarabaszScore", "DaviesBouldinScore", "SilhouetteScore")
    return measure(side, "classes", {name: getattr(package, name) for name in names})


@row(
    "SubgroupAccuracyDifference", "SubgroupDifference", "SubgroupMetric", "DemographicParityDifference",
    "SelectionRate",
)  # fmt: skip
def fairness(side):
    try:
        from ignite.metrics import fairness as package
    except ImportError:
        return "not in this release"

    def grouped(output):
        return output[0], output[1], output[1] % 2

    factories = {
        "accuracy": lambda: package.SubgroupAccuracyDifference([0, 1], output_transform=grouped),
        "parity": lambda: package.DemographicParityDifference([0, 1], output_transform=grouped),
        "difference": lambda: package.SubgroupDifference(metrics.Accuracy(), [0, 1], output_transform=grouped),
        "rate": package.SelectionRate,
    }
    return measure(side, "classes", factories)


@row("GpuInfo", support=HOST, note="asks an NVIDIA driver; `IPUStats` reports what an IPU does")
def gpu_info(side):
    try:
        metrics.GpuInfo()
    except (ModuleNotFoundError, RuntimeError) as error:
        return type(error).__name__
    return "an NVIDIA GPU is present"
