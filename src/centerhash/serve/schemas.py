"""The answers of the server, field by field; OpenAPI is generated from them."""

from __future__ import annotations

from pydantic import BaseModel, Field

_ID = Field(description="hex digits of its content's hash, or the imported id", examples=["9f86d081884c7d65"])


class Weighted(BaseModel):
    """One label of the query."""

    label: str
    weight: float = Field(description="weight in the query; predicted labels sum to 1, others have 0")
    similarity: float = Field(description="cosine between the query and the label's hash center, -1 to 1")
    distance: int = Field(description="Hamming distance between the query's code and the hash center")


class Item(BaseModel):
    """One image of the index."""

    id: str = _ID
    labels: list[str] = Field(description="labels it carries in the index")
    path: str | None = Field(description="file name without folders; None if there is no image to show")
    folder: str | None = Field(None, description="its folder, from the one on that holds all images")
    paths: list[str] = Field([], description="folders and names of all files with the same content, sorted")
    taken: str | None = Field(
        None,
        description="when it was taken by the clock of the camera, otherwise when its file was modified",
        examples=["2024-06-01T12:30:00"],
    )
    camera: str | None = None
    width: int | None = Field(None, description="pixels of the upright image; None where it cannot be read")
    height: int | None = None
    probability: dict[str, float] | None = Field(
        None, description="label probability of the labels of the query, else of its own; None: not stored"
    )
    share: dict[str, float] | None = Field(
        None, description="estimated area share of each of these labels, 0 to 1; None: not stored"
    )


class Result(Item):
    """One image that was found."""

    distance: int = Field(description="Hamming distance to the query's code, 0 to the number of bits")
    visual: int | None = Field(None, description="distance of the visual codes; None if one is missing")


class SearchAnswer(BaseModel):
    """The items that fit best, the best first."""

    labels: list[Weighted] = Field(description="of the query; empty if the model has no hash centers")
    results: list[Result]
    bits: int = Field(description="length of the codes")
    size: int = Field(description="items in the index")


class TypedLabel(BaseModel):
    """A label of a text."""

    label: str
    weight: float = Field(description="as written; 1 without a number")


class UnknownWord(BaseModel):
    """A word that is neither a label nor in the name of a file or folder."""

    word: str
    near: list[str] = Field(description="labels that it may be a misspelling of, or that it may mean")


class TypedAnswer(BaseModel):
    """What a text asks for."""

    labels: list[TypedLabel] = Field(description="to search by")
    having: list[str] = Field(description="labels without a hash center, to filter by")
    without: list[str] = Field(description="labels that must not be there")
    named: list[str] = Field(description="words in the names of files and folders")
    unknown: list[UnknownWord]


class ItemsAnswer(BaseModel):
    """Some images of the index, the newest first."""

    items: list[Item]
    total: int = Field(description="images that pass the filter")
    size: int = Field(description="items in the index")


class DuplicateItem(Item):
    """One file of a group of duplicates."""

    file: str = Field(
        description="by which `POST /duplicates/move` refers to it", examples=["4b227777d4dd1fc6"]
    )
    bytes: int | None = Field(None, description="size of the file")
    change: str | None = Field(None, description="how it differs from the one to keep: rotated, cropped")


class DuplicateGroup(BaseModel):
    """Images that are the same photo or look alike."""

    kind: str = Field(description="near: the same photo, as its pixels confirm; similar: they look alike")
    rule: str = Field(description="why the first one is kept: resolution, file size, shorter path")
    items: list[DuplicateItem] = Field(description="the one to keep first")


class DuplicatesAnswer(BaseModel):
    """Groups of duplicates; while the search for them runs, its progress: request again."""

    groups: list[DuplicateGroup] | None = Field(None, description="None while the search runs")
    images: int | None = Field(None, description="how many were compared")
    done: int | None = Field(None, description="of `total` steps of the search that runs")
    total: int | None = None
    movable: bool = Field(False, description="whether duplicates can be moved, with the token")
    undo: int = Field(0, description="photos of the last move, which can be moved back")


class DuplicateMove(BaseModel):
    """Files of one group: the one to keep, and those to move."""

    keep: str = Field(description="`file` of the photo that stays")
    others: list[str] = Field(description="`file` of each photo to move", min_length=1, max_length=10_000)


class DuplicatesMoved(BaseModel):
    """What became of the files of a move."""

    photos: int = Field(description="how many were moved")
    sidecars: int = Field(description="how many sidecar files were moved with them")
    skipped: int = Field(
        description="how many photos were not moved: they have changed, are links, or are gone"
    )


class FolderCount(BaseModel):
    """A folder and how many images it holds, those below it included."""

    folder: str
    count: int


class FoldersAnswer(BaseModel):
    """All folders of images."""

    folders: list[FolderCount]


class MonthCount(BaseModel):
    """A month and how many images were taken in it."""

    month: str = Field(examples=["2024-06"])
    count: int


class MonthsAnswer(BaseModel):
    """The months in which images were taken, the newest first; images without a date are in none."""

    months: list[MonthCount]


class CameraCount(BaseModel):
    """A camera and how many images of the index it took."""

    camera: str
    count: int


class CamerasAnswer(BaseModel):
    """All cameras, sorted by name."""

    cameras: list[CameraCount]


class LabelCount(BaseModel):
    """A label and how many items of the index carry it."""

    label: str
    count: int
    center: bool = Field(description="whether label queries may name it: it has a hash center, or is taught")
    taught: bool = Field(description="whether it was taught by examples")
    also: list[str] = Field(description="other words for it, which are understood as well")


class LabelsAnswer(BaseModel):
    """All labels: those of the model first, in its order, then others that items carry."""

    labels: list[LabelCount]


class Teaching(BaseModel):
    """Examples of a new or known taught label, by their ids."""

    name: str = Field(examples=["Bella"])
    like: list[str] = Field([], description="items that show it", max_length=1000)
    unlike: list[str] = Field([], description="items that do not show it", max_length=1000)


class Renaming(BaseModel):
    """A taught label and its new name."""

    name: str
    new: str


class TaughtLabel(BaseModel):
    """A taught label."""

    name: str
    like: list[str] = Field(description="ids of the examples that show it")
    unlike: list[str] = Field(description="ids of the examples that do not show it")
    items: int = Field(description="items that carry it")


class TaughtAnswer(BaseModel):
    """All taught labels, by name."""

    labels: list[TaughtLabel]


class SuggestionsAnswer(BaseModel):
    """Items to confirm or reject as examples of a taught label."""

    name: str
    likely: list[Item] = Field(description="the likeliest")
    uncertain: list[Item] = Field(description="the most uncertain of the others")


class Added(BaseModel):
    """An image that is stored durably."""

    id: str = _ID
    labels: list[str] = Field(description="labels that the model predicts")
    new: bool = Field(description="whether it was not there before")
    size: int = Field(description="items in the index")


class Removed(BaseModel):
    """An item that is durably gone."""

    id: str = _ID
    size: int = Field(description="items in the index")


class CountsAnswer(BaseModel):
    """How many images a further filter would leave; labels, cameras and folders without any are left out."""

    labels: dict[str, int]
    cameras: dict[str, int]
    folders: dict[str, int] = Field(description="images in each folder and below it")


class Health(BaseModel):
    """That the server is up, and what it serves."""

    status: str = Field(description="always 'ok': a server that is not does not answer")
    index: str = Field(description="name of the index's folder")
    size: int = Field(description="items in the index")
    adding: int = Field(description="images of a folder that are still to be added; 0 if none are")
    bits: int = Field(description="length of the codes")
    method: str | None = Field(description="how the model was trained; null without a model")
    writable: bool = Field(description="whether images can be added and removed, with the token")
    password: bool = Field(description="whether everything else needs the password")
    max_upload_mb: float = Field(description="largest upload in megabytes")
    changes: str = Field(description="another value whenever the index has changed")
    version: str


class Failure(BaseModel):
    """Every error looks like this."""

    error: str = Field(description="what was wrong and what to do, in one or two sentences")
