"""The published data sets by name: what they are, where they come from, how they are split.

Each row of DATASETS names the reader of its original files. The rows are also the source of `centerhash datasets`
and of docs/datasets.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from centerhash.core.errors import unknown_name
from centerhash.data.layouts.coco_json import read_coco_parts
from centerhash.data.layouts.contents import Contents
from centerhash.data.published.cifar10 import BINARIES, read_cifar10, read_cifar10_parts
from centerhash.data.published.download import RemoteFile
from centerhash.data.published.flickr25k import POTENTIAL, RELEVANT, read_flickr25k
from centerhash.data.published.listfiles import LISTS, read_imagenet100
from centerhash.data.published.nuswide import FREQUENT, read_nuswide
from centerhash.data.published.voc import read_voc

COMMON_DEPTH = 5_000  # of mAP, in the paper and nearly everywhere


@dataclass(frozen=True)
class RandomSplit:
    """Queries drawn from all images, the rest is the database, training images drawn from the database."""

    train: int
    query: int
    source: str
    note: str = ""

    def __str__(self) -> str:
        return (
            f"{self.query:,} random queries, the rest is the database, {self.train:,} random training images from "
            f"the database ({self.source}{self.note})"
        )


@dataclass(frozen=True)
class ClassSplit:
    """Of images with one label, as many queries and training images of each class; the rest is the database."""

    train: int  # of each class
    query: int
    joined: bool  # whether the database holds the training images too
    source: str

    def __str__(self) -> str:
        database = "all others are the database" if self.joined else "the rest is the database"
        return (
            f"of each class {self.query:,} random queries and {self.train:,} random training images, {database} "
            f"({self.source})"
        )


@dataclass(frozen=True)
class OfficialSplit:
    """The parts that the makers of the data set published, as the reader gives them."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class NamedSet:
    """A published data set. `images` carry at least one label; `photos` are all that belong to it."""

    name: str
    title: str
    classes: int
    images: int
    photos: int
    split: RandomSplit | ClassSplit | OfficialSplit
    areas: str
    licence: str
    citation: str
    home: str
    folder: str  # below --root
    files: tuple[RemoteFile, ...]
    needs: tuple[str, ...]  # paths below the folder without which nothing can be read; "a|b" is either
    reader: Callable[[Path], Contents]
    by_hand: tuple[str, ...] = ()
    depth: int = COMMON_DEPTH


_COCO = "http://images.cocodataset.org"
_NUSWIDE = "https://lms.comp.nus.edu.sg/wp-content/uploads/2019/research/nuswide"
_MIRFLICKR = "http://press.liacs.nl/mirflickr/mirflickr25k.v3b"
_VOC = "http://host.robots.ox.ac.uk/pascal/VOC"

_PAPER = RandomSplit(10_000, 5_000, "the paper, Sec. 4.1")
_MASKS = "the share of the frame that each label's masks cover together"


def _coco(year: str, files: tuple[RemoteFile, ...]) -> NamedSet:
    parts = (f"train{year}", f"val{year}")
    return NamedSet(
        name=f"coco{year}",
        title=f"MS COCO {year}, train and val",
        classes=80,
        images=122_218,
        photos=123_287,
        split=_PAPER,
        areas=_MASKS,
        licence="annotations CC BY 4.0; photos under their Flickr users' terms",
        citation="Lin et al.: Microsoft COCO: Common Objects in Context. ECCV 2014",
        home="https://cocodataset.org/#download",
        folder=f"coco{year}",
        files=files,
        needs=(*(f"annotations/instances_{part}.json" for part in parts), *parts),
        reader=partial(read_coco_parts, parts=parts),
    )


def _nuswide(
    classes: int, images: int, split: RandomSplit, reader: Callable[[Path], Contents], which: str
) -> NamedSet:
    return NamedSet(
        name=f"nuswide{classes}",
        title=f"NUS-WIDE, {which}",
        classes=classes,
        images=images,
        photos=269_648,
        split=split,
        areas="unknown",
        licence="labels for research; photos under their Flickr users' terms, handed out under an agreement",
        citation="Chua et al.: NUS-WIDE: A Real-World Web Image Database. CIVR 2009",
        home=f"{_NUSWIDE}/NUS-WIDE.html",
        folder="nuswide",
        files=(
            RemoteFile(f"{_NUSWIDE}/Groundtruth.zip", into="Groundtruth"),
            RemoteFile(f"{_NUSWIDE}/ImageList.zip"),
        ),
        needs=("Groundtruth/AllLabels|AllLabels", "ImageList/Imagelist.txt|Imagelist.txt", "Flickr|images"),
        reader=reader,
        by_hand=(
            f"Open {_NUSWIDE}/NUS-WIDE.html, fill in the 'Agreement and Disclaimer Form' and send it to the address "
            "given there; instructions to fetch the photos come by e-mail.",
            "Unpack the photos so that they lie at nuswide/Flickr/actor/0001_2124494179.jpg and so on, with the "
            "folders of Imagelist.txt. (One flat folder nuswide/images also works: photos are found by the end of "
            "their path.)",
            "Photos that are missing from your copy are left out, with a warning that counts them.",
        ),
    )


def _flickr25k(
    name: str, classes: int, which: str, split: RandomSplit, reader: Callable[[Path], Contents]
) -> NamedSet:
    return NamedSet(
        name=name,
        title=f"MIRFLICKR-25000 (FLICKR25K), {which}",
        classes=classes,
        images=24_581,
        photos=25_000,
        split=split,
        areas="unknown",
        licence="photos under Creative Commons licences, one per photo in mirflickr/meta/license",
        citation="Huiskes, Lew: The MIR Flickr Retrieval Evaluation. MIR 2008",
        home="https://press.liacs.nl/mirflickr/",
        folder="mirflickr25k",
        files=(
            RemoteFile(f"{_MIRFLICKR}/mirflickr25k.zip", 3_069_184_257, "a23d0a8564ee84cda5622a6c2f947785"),
            RemoteFile(
                f"{_MIRFLICKR}/mirflickr25k_annotations_v080.zip", into="mirflickr25k_annotations_v080"
            ),
        ),
        needs=(
            "mirflickr|mirflickr25k|images",
            "mirflickr25k_annotations_v080|annotations|mirflickr/annotations",
        ),
        reader=reader,
    )


def _voc(
    year: int, images: int, split: str, files: tuple[RemoteFile, ...], reader: Callable[[Path], Contents]
) -> NamedSet:
    return NamedSet(
        name=f"voc{year}",
        title=f"Pascal VOC {year}",
        classes=20,
        images=images,
        photos=images,
        split=OfficialSplit(split),
        areas="the share of the frame that each label's boxes cover together; objects marked difficult count",
        licence="photos under their Flickr users' terms; the data for research",
        citation="Everingham et al.: The Pascal Visual Object Classes (VOC) Challenge. IJCV 2010",
        home=f"{_VOC}/voc{year}/",
        folder="voc",
        files=files,
        needs=tuple(
            f"VOCdevkit/VOC{year}/{name}|VOC{year}/{name}"
            for name in ("Annotations", "ImageSets/Main", "JPEGImages")
        ),
        reader=reader,
    )


def _cifar10(
    name: str, split: ClassSplit | OfficialSplit, database: int, reader: Callable[[Path], Contents]
) -> NamedSet:
    return NamedSet(
        name=name,
        title=f"CIFAR-10, binary version, {database:,} images in the database",
        classes=10,
        images=60_000,
        photos=60_000,
        split=split,
        areas="unknown",
        licence="none stated; the makers ask to cite their report",
        citation="Krizhevsky: Learning Multiple Layers of Features from Tiny Images. 2009",
        home="https://www.cs.toronto.edu/~kriz/cifar.html",
        folder="cifar10",
        files=(
            RemoteFile(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                170_052_171,
                "c32a1d4ab5d03f1284b67883e8d87530",
            ),
        ),
        needs=(BINARIES,),
        reader=reader,
        depth=database,
    )


_HASHNET = "https://github.com/thuml/HashNet"

_IMAGENET100 = NamedSet(
    name="imagenet100",
    title="ImageNet100, the 100 classes of HashNet's lists",
    classes=100,
    images=133_503,
    photos=133_503,
    split=OfficialSplit(
        "HashNet's lists: 10,000 training images out of a database of 128,503, all from ImageNet's training part, and "
        "5,000 queries from its validation part"
    ),
    areas="unknown",
    licence="ImageNet's terms: for research, not to be handed on",
    citation="Cao et al.: HashNet: Deep Learning to Hash by Continuation. ICCV 2017; Russakovsky et al.: ImageNet Large "
    "Scale Visual Recognition Challenge. IJCV 2015",
    home=_HASHNET,
    folder="imagenet100",
    files=(),
    needs=(f"{LISTS}/train.txt",),
    reader=read_imagenet100,
    by_hand=(
        f"Copy HashNet's lists for ImageNet ({_HASHNET}, pytorch/data/imagenet) to imagenet100/lists: train.txt, "
        "test.txt and database.txt, or the latter two in parts (test0.txt, database0.txt, ... of caffe/data/imagenet).",
        "Fetch imagenet.tar.gz from the folder that HashNet's README names, or the training and validation images of "
        "ILSVRC2012 from https://image-net.org after registering, and unpack them anywhere below imagenet100/.",
        "Images are found by the end of their path; missing ones are left out, with a warning that counts them.",
    ),
    depth=1_000,
)

_ROWS = (
    _coco(
        "2014",
        (
            RemoteFile(
                f"{_COCO}/annotations/annotations_trainval2014.zip",
                252_872_794,
                "0a379cfc70b0e71301e0f377548639bd",
            ),
            RemoteFile(f"{_COCO}/zips/train2014.zip", 13_510_573_713, "0da8c0bd3d6becc4dcb32757491aca88"),
            RemoteFile(f"{_COCO}/zips/val2014.zip", 6_645_013_297, "a3d79f5ed8d289b7a7554ce06a5782b3"),
        ),
    ),
    _coco(
        "2017",
        (
            RemoteFile(
                f"{_COCO}/annotations/annotations_trainval2017.zip",
                252_907_541,
                "f4bbac642086de4f52a3fdda2de5fa2c",
            ),
            RemoteFile(f"{_COCO}/zips/train2017.zip", 19_336_861_798, "cced6f7f71b7629ddf16f17bbcfab6b2"),
            RemoteFile(f"{_COCO}/zips/val2017.zip", 815_585_330, "442b8da7639aecaf257c1dceb8ba8c80"),
        ),
    ),
    _nuswide(
        21,
        195_834,
        RandomSplit(
            10_000,
            2_040,
            "the paper, Table 1",
            "; the table's 149,685 database images are those of CSQ's list, which --lists reads",
        ),
        partial(read_nuswide, classes=FREQUENT),
        "the 21 most frequent classes",
    ),
    _nuswide(81, 209_347, _PAPER, read_nuswide, "all 81 classes"),
    _flickr25k(
        "flickr25k",
        24,
        "24 potential annotations",
        RandomSplit(10_000, 2_000, "the counts of DCMH, CVPR 2017"),
        read_flickr25k,
    ),
    _flickr25k(
        "flickr25k-38",
        38,
        "24 potential and 14 relevant annotations",
        RandomSplit(4_000, 1_000, "the counts of DHN, AAAI 2016"),
        partial(read_flickr25k, classes=POTENTIAL + RELEVANT),
    ),
    _voc(
        2007,
        9_963,
        "the official trainval (5,011) trains and is the database, the official test (4,952) asks",
        (
            RemoteFile(
                f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar", 460_032_000, "c52e279531787c972589f7e41ab4ae64"
            ),
            RemoteFile(
                f"{_VOC}/voc2007/VOCtest_06-Nov-2007.tar", 451_020_800, "b6e924de25625d8de591ea690078ad9f"
            ),
        ),
        partial(read_voc, year="VOC2007", known="trainval", asking="test"),
    ),
    _voc(
        2012,
        11_540,
        "the official train (5,717) trains and is the database, the official val (5,823) asks: test labels are secret",
        (
            RemoteFile(
                f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar",
                1_999_639_040,
                "6cd6e144f989b92b3379bac3b3de84fd",
            ),
        ),
        partial(read_voc, year="VOC2012", known="train", asking="val"),
    ),
    _cifar10(
        "cifar10",
        ClassSplit(500, 100, joined=False, source="the counts of DeepHash-pytorch"),
        54_000,
        read_cifar10,
    ),
    _cifar10(
        "cifar10-1",
        ClassSplit(500, 100, joined=True, source="protocol I of GreedyHash"),
        59_000,
        read_cifar10,
    ),
    _cifar10(
        "cifar10-2",
        OfficialSplit(
            "the official training part (50,000) trains and is the database, the official test part (10,000) asks "
            "(protocol II of GreedyHash)"
        ),
        50_000,
        read_cifar10_parts,
    ),
    _IMAGENET100,
)

DATASETS: Mapping[str, NamedSet] = {row.name: row for row in _ROWS}


def get_dataset(name: str) -> NamedSet:
    """Return the row of a data set, or say which there are."""
    if name not in DATASETS:
        raise unknown_name("data set", name, DATASETS, see="See `centerhash datasets`.")
    return DATASETS[name]
