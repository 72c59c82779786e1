"""Names of columns: usual names in logs and lists for ours, used by guesses, readers and errors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

# One choice among alternatives that were shown together, as surveys and studies of transport write it.
CASES = (
    "case", "caseid", "choiceset", "choicesetid", "choicesituation", "choicetask", "choiceid", "chid", "situation",
    "situationid", "taskid", "qes", "obsid", "casenum", "caseno", "casenumber",
)  # fmt: skip
ALTERNATIVES = (
    "alternative", "alternativeid", "alternativeno", "alt", "altid", "altnum", "altno", "option", "optionid",
    "choicealternative",
)  # fmt: skip
# A till's receipts: sequences only if no column names the person.
BASKETS = (
    "basketid", "basket", "invoiceno", "invoiceid", "invoice", "invoicenumber", "receiptid", "receiptno", "receipt",
    "receiptnumber", "orderid", "orderno", "ordernumber", "order", "billid", "billno", "ticketid", "ticketno", "ticket",
    "transactionid", "transactionno", "transaction", "cartid", "bonid", "bonnr", "kassenbon",
)  # fmt: skip
# Our column -> names that mean it, the surest first; compared in small letters without marks. English first, then
# German, French, Spanish, Italian, Portuguese, Russian, Japanese and Chinese, some Dutch, Polish and Korean.
NAMES: dict[str, tuple[str, ...]] = {
    "sequence_id": (
        "sequenceid", "seqid", "sequence", "sessionid", "session", "visitid", "visit", "visitorid", "visitor", "userid",
        "user", "customerid", "customer", "custid", "custno", "custkey", "clientid", "client", "memberid", "member",
        "uid", "cookie", "personid", "person", "profileid", "deviceid", "accountid", "reviewerid", "reviewer",
        "viewerid", "viewer", "listenerid", "listener", "readerid", "reader", "playerid", "player", "buyerid", "buyer",
        "shopperid", "shopper", "customerno", "customernumber", "memberno", "membernumber", "profilename",
        "username", "kundennummer", "subscriberid", "guestid",
        "householdid", "household", "householdkey", "hhid", "hid", "hhkey", "individual", "individualid", "respondent",
        "respondentid", "panelist", "panelistid", "cardid", "cardno",
        "cardnumber", "loyaltyid", "anonymousid", "cookieid", "playlistid", "sitzung", "nutzer", "nutzerid", "benutzer",
        "kunde", "kundenid", "kundennr", "utilisateur", "usager", "usuario", "utente", "cliente", "пользователь",
        "ユーザー", "ユーザーid", "顧客", "用户", "用户id", "会话", "userpseudoid", "gebruiker", "klant", "uzytkownik",
        "użytkownik", "klient", "사용자", "고객",
        "email", "emailaddress", "useremail", "customeremail", "recipient", "recipientid", "card", "loyaltycard",
        "leser", "lesernr", "borrower", "borrowerid", "patron", "patronid",
        *BASKETS,
    ),
    "item_id": (
        "itemid", "item", "productid", "product", "articleid", "article", "movieid", "movie", "trackid", "track",
        "songid", "song", "sku", "contentid", "content", "videoid", "video", "bookid", "book", "asin", "iid", "pid",
        "stockcode", "isbn", "ean", "gtin", "listingid", "postid", "newsid", "gameid", "game", "animeid",
        "anime", "recipeid", "recipe", "filmid", "film", "appid", "app", "beerid", "beer", "wineid", "wine",
        "parentasin", "listing", "venue", "hotel", "restaurant", "business", "course", "offer", "poi", "episode",
        *ALTERNATIVES, "items",
        "podcast", "joke", "jokeid", "productcode", "itemcode", "articleno", "itemno", "artikelnummer",
        "restaurantid", "businessid", "venueid", "hotelid", "courseid", "jobid", "adid", "ad", "offerid", "goodsid",
        "goods", "artistid", "artist", "podcastid", "episodeid", "showid", "documentid", "docid", "poiid",
        "artikel", "artikelid", "artikelnr", "news", "doc", "lineitemsku", "productsku", "itemsku", "variantsku",
        "offercode", "mediennummer",
        "produkt", "produktid", "produit", "producto", "prodotto", "produto", "articulo", "articolo", "товар",
        "商品", "商品id", "アイテム", "物品", "상품", "아이템",
    ),
    "event": (
        "event", "eventtype", "eventname", "action", "actiontype", "behavior", "behaviour", "behaviortype", "what",
        "interaction", "interactiontype", "type", "rating", "stars", "answer", "response", "outcome",
        "ereignis", "aktion", "evenement", "evento", "accion", "azione", "acao", "событие", "действие", "行動", "行为",
        "イベント", "事件", "gebeurtenis", "zdarzenie", "이벤트", "행동",
    ),
    "timestamp": (
        "timestamp", "time", "eventtime", "datetime", "date", "createdat", "when", "ts", "unixtime", "occurredat",
        "timestampms", "timems", "tsms", "eventtimems", "timeus", "timens", "unixts", "epoch", "day",
        "zeit", "zeitpunkt", "zeitstempel", "datum", "horodatage", "fecha", "data", "время", "дата", "時刻",
        "日時", "时间", "时间戳", "日期", "eventtimestamp", "dataora", "tijdstip", "czas", "시간", "일시",
    ),
    "propensity": (
        "propensity", "propensityscore", "pscore", "probability", "actionprobability", "loggingprobability",
        "loggingprob", "loggingpropensity", "loggedpropensity", "behaviorprobability", "behaviourprobability",
        "displayprobability", "exposureprobability", "probaction", "actionprob", "showprob", "probshown", "prob", "p",
        "mu", "prop", "propscore", "displayprob", "exposureprob", "impressionprob", "policyprob", "loggedprob",
        "itemprob",
    ),
    "request": (
        "request", "requestid", "listid", "slateid", "slate", "recommendationid", "recommendation", "recid", "queryid",
        "searchid",
        "displayid", "rankingid", "pageviewid", "impressionid", "impression", "anfrage", "requete",
        *CASES,
    ),
    "place": (
        "place", "position", "pos", "slot", "slotid", "rankshown", "shownrank", "rankposition", "displayposition",
        "positionshown", "itemposition", "shownposition", "listposition", "displayrank", "placement", "rank",
        "posicion", "posizione", "platz", "位置",
    ),
    "policy": ("policy", "policyversion"),
    "reward": ("reward",),
}  # fmt: skip
TAILS = ("", "clean", "hash", "hashed", "key", "code", "name", "title", "description", "number", "no", "nr", "uuid")
LEAST_LETTERS = 4  # of a name that is looked for at the end of a longer one
RATINGS = ("rating", "ratings", "stars", "overall", "grade")  # names of a column of numbers people gave
TYPED = re.compile(r"(?<=.):(token|float|int|integer|long|double|string|str|datetime|boolean|bool)(_seq)?$")
FEW_STARS = 21  # different numbers that people may give: 0 to 10 in halves
# Parts of names that make a varying number a likely reward. What is stated as such comes first,
# then ratings, money, time, yes or no, and counts last: of sales value and quantity the value is what counts.
REWARDING = (
    ("reward", "utility", "satisfaction", "gain"),
    ("rating", "stars", "overall", "grade"),
    (
        "revenue",
        "sales",
        "profit",
        "gmv",
        "margin",
        "umsatz",
        "turnover",
        "spend",
        "spent",
        "total",
        "value",
        "gesamt",
        "summe",
    ),
    ("amount", "betrag", "montant", "importe"),
    ("price", "preis", "prix", "precio"),
    ("ratio", "completion", "progress"),
    ("dwell", "duration", "watch", "playtime", "listen", "seconds", "minutes", "msplayed"),
    ("like", "thumb", "vote", "click", "conversion", "converted", "purchased", "label", "feedback", "target"),
    ("quantity", "qty", "units", "plays", "menge", "anzahl", "quantite", "cantidad", "count"),
)
MONEY, COUNTS = REWARDING[2:5], REWARDING[-1]
UNITS = COUNTS[:3]  # of what is bought
# Parts of names that make it something else, though another part would fit: what was taken off or added.
NOT_REWARDING = ("disc", "rabatt", "coupon", "tax", "shipping", "balance", "weight")


def rewarding(name: str) -> int | None:
    """Return the group of likely rewards that a column's name belongs to, 0 being the surest; None for none."""
    called = plain(name)
    if any(part in called for part in NOT_REWARDING):
        return None
    return next((place for place, parts in enumerate(REWARDING) if any(part in called for part in parts)), None)


def plain(name: str) -> str:
    """Return the name in small letters and digits alone, without accents, and without a type: user_id:token."""
    letters = unicodedata.normalize("NFKD", TYPED.sub("", name.lower()))
    return re.sub(r"[\W_]", "", "".join(letter for letter in letters if not unicodedata.combining(letter)))


def by_its_end(names: Sequence[str], ours: str) -> str | None:
    """Return the column whose name ends with one that means ours, the surest first: musicbrainz-track-id, shown_item.

    What only says how the id is written may follow: track_id_clean. None if there is no such column.
    """
    called = {name: plain(name) for name in names}
    return next(
        (
            name
            for word in map(plain, NAMES[ours])
            for tail in TAILS
            for name in names
            if len(word) >= LEAST_LETTERS and called[name].endswith(word + tail)
        ),
        None,
    )


def columns_meant(names: Sequence[str], ours: Sequence[str] = tuple(NAMES)) -> dict[str, str]:
    """Map our columns to the log's by name, each used once, the surest names first."""
    called = {plain(name): name for name in reversed(names)}
    matches: dict[str, str] = {}
    for column in ours:
        known = (called[plain(word)] for word in NAMES[column] if plain(word) in called)
        match = next((name for name in known if name not in matches.values()), None)
        if match is not None:
            matches[column] = match
    return matches
