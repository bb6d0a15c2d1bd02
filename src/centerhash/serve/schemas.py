"""The responses of the server, field by field; OpenAPI is generated from them."""

from __future__ import annotations

from pydantic import BaseModel, Field

_ID = Field(description="hex digits of its content's hash, or the imported id", examples=["9f86d081884c7d65"])


class LabelWeight(BaseModel):
    """One label of the query."""

    label: str
    weight: float = Field(description="weight in the query; predicted labels sum to 1, others have 0")
    similarity: float = Field(description="cosine between the query and the label's hash center, -1 to 1")
    distance: int = Field(description="Hamming distance between the query's code and the hash center")


class ItemResponse(BaseModel):
    """One image of the index."""

    id: str = _ID
    labels: list[str] = Field(description="labels it carries in the index")
    path: str | None = Field(description="file name without folders; None if there is no image to show")
    folder: str | None = Field(None, description="its folder, from the one on that holds all images")
    paths: list[str] = Field([], description="folders and names of all files with the same content, sorted")
    taken: str | None = Field(None, description="date by the clock of the camera, else that of the file")
    width: int | None = Field(None, description="pixels of the upright image; None if it cannot be read")
    height: int | None = None
    attributes: dict[str, float | str | None] = Field({}, description="of an index without photos")
    probability: dict[str, float] | None = Field(
        None, description="label probability of the labels of the query, else of its own; None: not stored"
    )
    share: dict[str, float] | None = Field(
        None, description="estimated area share of each of these labels, 0 to 1; None: not stored"
    )


class ResultResponse(ItemResponse):
    """One result of a search."""

    distance: int = Field(description="Hamming distance to the query's code, 0 to the number of bits")
    general: int | None = Field(None, description="distance of the general codes; None if one is missing")


class SearchResponse(BaseModel):
    """The results of a search, best first."""

    labels: list[LabelWeight] = Field(description="of the query; empty if the model has no hash centers")
    results: list[ResultResponse]
    bits: int = Field(description="length of the codes")
    size: int = Field(description="items in the index")


class ParsedQueryResponse(BaseModel):
    """The query that a text describes."""

    labels: dict[str, float] = Field(description="to search by, with their weights; 1 without a number")
    without: list[str] = Field(description="labels that must not be there")
    unknown: dict[str, tuple[str, ...]] = Field(
        description="words that are no labels, each with the labels that it may be a misspelling of"
    )


class ItemsResponse(BaseModel):
    """Some images of the index, the newest first."""

    items: list[ItemResponse]
    total: int = Field(description="images that pass the filter")
    size: int = Field(description="items in the index")


class DuplicateResponse(ItemResponse):
    """One file of a group of duplicates."""

    bytes: int | None = Field(None, description="size of the file")


class DuplicateGroup(BaseModel):
    """Images that are the same photo or look alike."""

    kind: str = Field(
        description="same: equal bytes; near: the same photo, as its pixels confirm; similar: they look alike"
    )
    items: list[DuplicateResponse] = Field(description="the largest file first")


class DuplicatesResponse(BaseModel):
    """Groups of duplicates; while the search for them runs, its progress: request again."""

    groups: list[DuplicateGroup] | None = Field(None, description="None while the search runs")
    images: int | None = Field(None, description="how many were compared")
    done: int | None = Field(None, description="of `total` steps of the search that runs")
    total: int | None = None


class LabelCount(BaseModel):
    """A label and how many items of the index carry it."""

    label: str
    count: int
    center: bool = Field(description="whether label queries may name it: it has a hash center")
    also: list[str] = Field(description="synonyms, which queries may use as well")


class LabelsResponse(BaseModel):
    """All labels: those of the model first, in its order, then others that items carry."""

    labels: list[LabelCount]


class CountsResponse(BaseModel):
    """How many images a further filter would leave; labels and folders without any are omitted."""

    labels: dict[str, int]
    folders: dict[str, int] = Field(
        description="images in each folder and below it; one with files in several of them counts in each"
    )


class HealthResponse(BaseModel):
    """The state of the server, and the index that it serves."""

    status: str = Field(description="always 'ok': a server that is not does not answer")
    index: str = Field(description="name of the index's folder")
    size: int = Field(description="items in the index")
    adding: int = Field(description="images of a folder that are still to be added; 0 if none are")
    bits: int = Field(description="length of the codes")
    method: str | None = Field(description="how the model was trained; null without a model")
    password: bool = Field(description="whether everything else needs the password")
    max_upload_mb: float = Field(description="largest upload in megabytes")
    changes: str = Field(description="another value whenever the index has changed")
    version: str


class ErrorResponse(BaseModel):
    """An error; all errors have this shape."""

    error: str = Field(description="what was wrong and what to do, in one or two sentences")
