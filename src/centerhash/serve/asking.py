"""Routes that ask the index: by image, id or labels, and for what it holds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request
from starlette.exceptions import HTTPException

from centerhash.search.names import synonyms
from centerhash.serve.described import UPLOAD, failures
from centerhash.serve.index import ServedIndex
from centerhash.serve.requests import read_image
from centerhash.serve.schemas import (
    DuplicatesAnswer,
    FolderCount,
    FoldersAnswer,
    Item,
    ItemsAnswer,
    LabelCount,
    LabelsAnswer,
    SearchAnswer,
)

MAX_RESULTS = 1000

K = Annotated[int, Query(ge=1, le=MAX_RESULTS, description="how many results")]
Having = Annotated[
    list[str] | None, Query(description="only items that carry all of these labels", max_length=32)
]
Without = Annotated[
    list[str] | None, Query(description="only items that carry none of these labels", max_length=32)
]
Under = Annotated[
    str | None, Query(description="only images in this folder, named as `folder` of a result is")
]
By = Annotated[
    Literal["both", "look", "meaning"],
    Query(
        description="what to compare: semantic and visual codes, the look alone, or the semantic code alone"
    ),
]
Within = Annotated[int | None, Query(ge=0, description="only results at this Hamming distance or less")]


def add_search(app: FastAPI, served: ServedIndex) -> None:
    """Searching."""

    @app.post("/search", openapi_extra=UPLOAD, responses=failures(400, 408, 413, 415))
    async def search_by_upload(
        request: Request,
        k: K = 10,
        by: By = "both",
        having: Having = None,
        without: Without = None,
        under: Under = None,
        within: Within = None,
    ) -> SearchAnswer:
        """Search by an image, sent as the form field `image`.

        Example: `curl -F image=@photo.jpg 'http://127.0.0.1:8000/search?k=5'`
        """
        served.images.check()
        image = await read_image(request)
        only: dict[str, Any] = {
            "having": having or (),
            "without": without or (),
            "under": under,
            "within": within,
        }
        return await served.search(image, k=k, by=by, **only)

    @app.get("/search", responses=failures(400, 404))
    async def search(
        id: Annotated[
            str | None, Query(description="an item of the index", examples=["9f86d081884c7d65"])
        ] = None,
        labels: Annotated[
            str | None, Query(description="labels, with weights if wanted", examples=["dog:0.7,bicycle:0.3"])
        ] = None,
        k: K = 10,
        by: By = "both",
        having: Having = None,
        without: Without = None,
        under: Under = None,
        within: Within = None,
    ) -> SearchAnswer:
        """Search by the id of an item, or by a mixture of labels; one of the two.

        Example: `curl 'http://127.0.0.1:8000/search?labels=dog:0.7,bicycle:0.3&k=5'`
        """
        if (id is None) == (labels is None):
            raise HTTPException(
                400, "give either id=... or labels=dog:0.7,bicycle:0.3; or send an image by POST."
            )
        only: dict[str, Any] = {
            "having": having or (),
            "without": without or (),
            "under": under,
            "within": within,
        }
        return await served.search(id=id, labels=labels, k=k, by=by, **only)


def add_collection(app: FastAPI, served: ServedIndex) -> None:
    """What the index holds."""
    model = served.index.model

    @app.get("/items", responses=failures(400))
    async def items(
        offset: Annotated[int, Query(ge=0, description="how many to pass over")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_RESULTS, description="how many to answer with")] = 100,
        having: Having = None,
        without: Without = None,
        under: Under = None,
    ) -> ItemsAnswer:
        """The images of the index, those first whose files were modified last; for uploads this is when they came.

        Example: `curl 'http://127.0.0.1:8000/items?limit=5&having=dog'`
        """
        return await served.items(offset, limit, having or (), without or (), under)

    @app.get("/items/{id:path}", responses=failures(404))
    async def item(id: str) -> Item:
        """What is known of one image."""
        return await served.item(id)

    @app.get("/folders", responses=failures())
    async def folders() -> FoldersAnswer:
        """The folders of the images, with the number of images in each and below it."""
        counts = await served.folders()
        return FoldersAnswer(
            folders=[FolderCount(folder=name, count=count) for name, count in counts.items()]
        )

    @app.get("/duplicates", responses=failures(400))
    async def duplicates() -> DuplicatesAnswer:
        """Groups of images that are the same photo or look alike; the first question begins the search for them."""
        return await served.duplicates()

    @app.get("/labels", responses=failures())
    async def labels() -> LabelsAnswer:
        """All labels, with the number of items that carry each."""
        counts = await served.labels()
        centers = set(model.classes) if model.has_centers else set()
        rows = [
            LabelCount(
                label=label,
                count=counts.get(label, 0),
                center=label in centers,
                also=[word for word, meant in synonyms().items() if meant == label],
            )
            for label in dict.fromkeys((*model.classes, *counts))
        ]
        return LabelsAnswer(labels=rows)
