/* The whole loop in C, for the benchmark only: header, judge, apply, row into columns. And the chain
   of headers alone, into six columns.

   The same rules as polymux's mplex and Nerdbank v3, seen from the middle of a connection. What is
   owed at the end is not kept, and frames without a shape end the loop; everything else gives the
   same verdicts, which the benchmark checks. A rule is the bit of its place in polymux's table. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int64_t i64;
typedef uint8_t u8;

enum { OPEN, ENDED, ABORTED };
enum { SHORT = -1, BAD = -2 };
static const i64 NEVER = (i64)1 << 61, CROSSED = (i64)1 << 62;
#define RULE(n) ((i64)1 << (n))

typedef struct { /* what one side may send on a stream, and did */
    i64 granted, spent, window, state, stopped, final, vague, reset, bytes, frames, peak;
    i64 first_at, last_at, blocked, blocked_since;
} Half;
typedef struct {
    i64 key, number, opener, opened, answerable, incarnation, accepted, over;
    Half half[2];
} Stream;
typedef struct { i64 kind, key, number, opener, size, amount, flaws; } Head;
typedef struct {
    i64 room, rows, findings, turned, counts[64], verdicts[3];
    i64 sent[2], read[2], frozen[2], offset[2];
    i64 mask, used;
    Stream **slots;
    u8 *sender, *kind, *opener, *verdict;
    i64 *ordinal, *at, *start, *size, *number, *incarnation, *amount, *payload;
} Loop;

Loop *loop_new(i64 room, i64 findings) {
    Loop *l = calloc(1, sizeof *l);
    u8 **narrow[] = {&l->sender, &l->kind, &l->opener, &l->verdict};
    i64 **wide[] = {&l->ordinal, &l->at, &l->start, &l->size,
                    &l->number, &l->incarnation, &l->amount, &l->payload};
    for (int i = 0; i < 4; i++) *narrow[i] = calloc(room, 1);
    for (int i = 0; i < 8; i++) *wide[i] = calloc(room, 8);
    l->room = room, l->findings = findings, l->mask = 16383;
    l->slots = calloc(l->mask + 1, sizeof *l->slots);
    return l;
}

void loop_free(Loop *l) {
    void *columns[] = {l->sender, l->kind, l->opener, l->verdict, l->ordinal, l->at, l->start,
                       l->size, l->number, l->incarnation, l->amount, l->payload, l->slots};
    for (i64 i = 0; i <= l->mask; i++) free(l->slots[i]);
    for (int i = 0; i < 13; i++) free(columns[i]);
    free(l);
}

void loop_counts(const Loop *l, i64 *rules, i64 *verdicts) {
    memcpy(rules, l->counts, sizeof l->counts);
    memcpy(verdicts, l->verdicts, sizeof l->verdicts);
}

static Stream **slot(Loop *l, i64 key) {
    i64 i = (i64)((uint64_t)key * 7046029254386353131u >> 20) & l->mask;
    while (l->slots[i] && l->slots[i]->key != key) i = (i + 1) & l->mask;
    return &l->slots[i];
}

static Stream *make(Loop *l, const Head *h, i64 sender, Stream *before) {
    Stream *s = calloc(1, sizeof *s);
    s->key = h->key, s->number = h->number, s->opener = h->opener;
    s->opened = s->answerable = l->sent[sender], s->incarnation = 1;
    for (int i = 0; i < 2; i++) {
        Half *half = &s->half[i];
        half->granted = half->window = half->first_at = half->last_at = half->blocked_since = -1;
        half->stopped = half->final = NEVER;
    }
    *slot(l, h->key) = s;
    if (before) s->incarnation = before->incarnation + 1, s->answerable = before->answerable;
    free(before);
    return s;
}

static int knows(const Loop *l, i64 side, i64 ordinal) { return ordinal < l->frozen[side]; }
static int stale(const Loop *l, const Stream *s, i64 sender) {
    return s->incarnation > 1 && sender != s->opener && !knows(l, sender, s->opened);
}
static void answer(Loop *l, const Stream *s, i64 sender) {
    if (sender != s->opener && s->answerable >= l->read[sender])
        l->read[sender] = s->answerable + 1;
}
static void stop(Half *half, i64 state, i64 ordinal, i64 vague) {
    half->state = state, half->stopped = ordinal, half->vague = vague;
}

/* --- mplex */

enum { BAD_FLAG, VARINT_TOO_LONG, NONCANONICAL, TOO_LONG, ID_REUSED, UNKNOWN, WRONG_ROLE,
       AFTER_CLOSE, CLOSE_TWICE, AFTER_RESET, AFTER_PEER_RESET, CLOSE_PAYLOAD, RESET_PAYLOAD,
       ID_PARITY, ID_RECYCLED, RESET_OVER };

static i64 uvarint(const u8 *data, i64 pos, i64 end, i64 *value) {
    *value = 0;
    for (i64 shift = 0; pos < end; shift += 7) {
        if (shift > 56) return BAD;
        u8 byte = data[pos++];
        *value |= (i64)(byte & 127) << shift;
        if (byte < 128) return pos;
    }
    return SHORT;
}

static i64 mplex_header(const u8 *data, i64 pos, i64 end, i64 sender, Head *h) {
    i64 word, mid = uvarint(data, pos, end, &word);
    if (mid < 0) return mid;
    i64 start = uvarint(data, mid, end, &h->size);
    if (start < 0) return start;
    h->flaws = (!data[mid - 1] && mid - pos > 1) || (!data[start - 1] && start - mid > 1)
                   ? RULE(NONCANONICAL) : 0;
    if (h->size > 1 << 20) h->flaws |= RULE(TOO_LONG);
    h->kind = word & 7, h->number = word >> 3, h->opener = sender ^ (h->kind & 1);
    h->key = h->number * 2 + h->opener, h->amount = -1;
    return start;
}

static int mplex_over(const Stream *s) {
    i64 d = s->half[0].state, a = s->half[1].state;
    return d == ABORTED || a == ABORTED || (d == ENDED && a == ENDED);
}

static i64 mplex_judge(Loop *l, i64 sender, const Head *h, const Stream *s) {
    i64 kind = h->kind;
    if (kind == 0) {
        i64 verdict = (h->number & 1) == 1 - sender ? 0 : RULE(ID_PARITY);
        return s ? verdict | (mplex_over(s) ? RULE(ID_RECYCLED) : RULE(ID_REUSED)) : verdict;
    }
    if (kind == 7) return RULE(BAD_FLAG);
    if (!s) {
        Stream *other = *slot(l, h->key ^ 1);
        return other && !other->over ? RULE(WRONG_ROLE) : RULE(UNKNOWN);
    }
    const Half *own = &s->half[sender], *peer = &s->half[1 - sender];
    i64 verdict = h->size > 0 && kind >= 3 ? RULE(kind <= 4 ? CLOSE_PAYLOAD : RESET_PAYLOAD) : 0;
    if (stale(l, s, sender)) return verdict | CROSSED;
    int known = peer->state != OPEN && knows(l, sender, peer->stopped);
    if (peer->state == ABORTED && !known) verdict |= CROSSED;
    if (own->reset && !own->vague) return verdict | RULE(AFTER_RESET);
    if (own->state == ENDED && !own->vague && kind <= 4)
        return verdict | RULE(kind <= 2 ? AFTER_CLOSE : CLOSE_TWICE);
    if (peer->state == ABORTED)
        return known ? verdict | RULE(kind <= 4 ? AFTER_PEER_RESET : RESET_OVER) : verdict;
    if (own->state == ENDED && !own->vague && peer->state == ENDED && known)
        verdict |= RULE(RESET_OVER);
    return verdict;
}

static Stream *mplex_apply(Loop *l, i64 sender, const Head *h, Stream *s, int *counted) {
    i64 kind = h->kind;
    if (kind == 0) return make(l, h, sender, s);
    if (!s || kind == 7) return s;
    Half *own = &s->half[sender], *peer = &s->half[1 - sender];
    int vague = stale(l, s, sender);
    answer(l, s, sender);
    if (own->vague && !vague) stop(own, OPEN, own->stopped, 0);
    if (kind <= 2) {
        if (own->state == OPEN) own->spent += h->size, *counted = 1;
    } else if (own->state == OPEN || (kind >= 5 && own->state == ENDED
                                      && (peer->state != ENDED || peer->vague))) {
        stop(own, kind <= 4 ? ENDED : ABORTED, l->sent[sender], vague);
    }
    if (kind >= 5) own->reset = 1;
    return s;
}

/* --- Nerdbank v3 */

enum { OFFER, ACCEPTED, CONTENT, COMPLETED, TERMINATED, PROCESSED, READING, ADJUST, GROWTH };
enum { PAYLOAD_TOO_LONG = 5, FRAME_TOO_LONG, WRONG_SOURCE = 8, BAD_OFFER, BAD_ACCEPTANCE,
       REUSED, BEFORE_ACCEPTANCE, ACCEPTED_UNKNOWN, UNKNOWN_CHANNEL, WINDOW_EXCEEDED,
       WINDOW_SHRUNK, BAD_WINDOW, ACKED_TOO_MUCH, AFTER_COMPLETED, COMPLETED_TWICE,
       AFTER_TERMINATION, TERMINATED_TWICE, UNKNOWN_CODE = 24, NO_WINDOW, RECYCLED = 28,
       AFTER_PEER_TERMINATION };

static i64 integer(const u8 *data, i64 pos, i64 end, i64 *value) { /* a msgpack integer */
    if (pos >= end) return SHORT;
    u8 code = data[pos];
    if (code < 0x80) { *value = code; return pos + 1; }
    if (code >= 0xE0) { *value = code - 256; return pos + 1; }
    if (code < 0xCC || code > 0xD3) return BAD;
    i64 width = 1 << (code & 3);
    if (width > end - pos - 1) return SHORT;
    *value = code >= 0xD0 && data[pos + 1] > 127 ? -1 : 0;
    for (i64 i = pos + 1; i <= pos + width; i++) *value = *value * 256 + data[i];
    return pos + 1 + width;
}

static i64 blob(const u8 *data, i64 pos, i64 end, i64 *size) { /* the head of bytes or text */
    if (pos >= end) return SHORT;
    u8 code = data[pos];
    if (code >= 0xA0 && code <= 0xBF) { *size = code - 0xA0; return pos + 1; }
    int text = code >= 0xD9 && code <= 0xDB;
    if (!text && (code < 0xC4 || code > 0xC6)) return BAD;
    i64 width = 1 << (code - (text ? 0xD9 : 0xC4));
    if (width > end - pos - 1) return SHORT;
    *size = 0;
    for (i64 i = pos + 1; i <= pos + width; i++) *size = *size * 256 + data[i];
    return pos + 1 + width;
}

static void nerdbank_body(const u8 *data, i64 pos, i64 end, Head *h) {
    i64 kind = h->kind, count = pos < end ? data[pos++] - 0x90 : -1, size;
    i64 flaw = kind == OFFER ? RULE(BAD_OFFER) : RULE(BAD_ACCEPTANCE);
    if (kind == OFFER) {
        pos = blob(data, pos, end, &size);
        if (count-- < 1 || pos < 0 || size > end - pos) { h->flaws |= flaw; return; }
        pos += size;
    } else if (kind != ACCEPTED && kind != PROCESSED && kind != ADJUST) return;
    if (count < 1) { h->flaws |= count < 0 ? flaw : RULE(NO_WINDOW); return; }
    if (integer(data, pos, end, &h->amount) < 0) h->flaws |= flaw;
    else if ((h->amount <= 0 && kind != PROCESSED) || h->amount > 64 << 20)
        h->flaws |= RULE(BAD_WINDOW), h->amount = -1;
}

static i64 nerdbank_header(const u8 *data, i64 pos, i64 end, i64 sender, Head *h) {
    if (end - pos < 3) return SHORT;
    u8 shape = data[pos];
    i64 source;
    if (shape != 0x93 && shape != 0x94) return BAD;
    if ((pos = integer(data, pos + 1, end, &h->kind)) < 0) return pos;
    if ((pos = integer(data, pos, end, &h->number)) < 0) return pos;
    if ((pos = integer(data, pos, end, &source)) < 0) return pos;
    if (h->kind < 0 || h->kind > 200 || h->number < 0 || source < -1 || source > 1) return BAD;
    h->size = h->flaws = 0, h->amount = -1;
    if (shape == 0x94 && (pos = blob(data, pos, end, &h->size)) < 0) return pos;
    h->opener = source == 1 ? sender : source == -1 ? 1 - sender : 2;
    h->key = h->number * 4 + h->opener;
    if (h->size > 20480) h->flaws = RULE(h->size > 65536 ? FRAME_TOO_LONG : PAYLOAD_TOO_LONG);
    if (h->kind != CONTENT) {
        if (h->size > end - pos) return SHORT;
        nerdbank_body(data, pos, pos + h->size, h);
    }
    return pos;
}

static i64 passing(const Loop *l, i64 sender, const Half *peer) {
    if (peer->final == NEVER) return 0;
    return knows(l, sender, peer->final) ? RULE(AFTER_PEER_TERMINATION) : CROSSED;
}

static int nerdbank_over(const Stream *s) {
    const Half *d = &s->half[0], *a = &s->half[1];
    return (d->final != NEVER || d->state != OPEN) && (a->final != NEVER || a->state != OPEN);
}

static i64 nerdbank_judge(Loop *l, i64 sender, const Head *h, const Stream *s) {
    i64 kind = h->kind;
    if (kind == OFFER) {
        if (h->opener != sender) return RULE(WRONG_SOURCE);
        return !s ? 0 : nerdbank_over(s) ? RULE(RECYCLED) : RULE(REUSED);
    }
    if (kind > GROWTH) return RULE(UNKNOWN_CODE);
    if (!s) return kind == ACCEPTED ? RULE(ACCEPTED_UNKNOWN) : RULE(UNKNOWN_CHANNEL);
    const Half *own = &s->half[sender], *peer = &s->half[1 - sender];
    if (own->final != NEVER) return RULE(kind == TERMINATED ? TERMINATED_TWICE : AFTER_TERMINATION);
    if (kind == TERMINATED) return 0;
    i64 verdict = passing(l, sender, peer);
    if ((kind == CONTENT || kind == COMPLETED) && s->opener == 1 - sender && !s->accepted)
        verdict |= RULE(BEFORE_ACCEPTANCE);
    if (kind == CONTENT) {
        if (own->state != OPEN) verdict |= RULE(AFTER_COMPLETED);
        if (own->granted >= 0 && own->spent + h->size > own->granted)
            verdict |= RULE(WINDOW_EXCEEDED);
    } else if (kind == ACCEPTED) {
        if (s->opener == sender || s->accepted) verdict |= RULE(BAD_ACCEPTANCE);
    } else if (kind == COMPLETED) {
        if (own->state == ENDED) verdict |= RULE(COMPLETED_TWICE);
    } else if (kind == PROCESSED) {
        if (peer->granted >= 0 && h->amount > peer->spent - (peer->granted - peer->window))
            verdict |= RULE(ACKED_TOO_MUCH);
    } else if (kind == ADJUST && h->amount >= 0 && h->amount < peer->window) {
        verdict |= RULE(WINDOW_SHRUNK);
    }
    return verdict;
}

static Stream *nerdbank_apply(Loop *l, i64 sender, const Head *h, Stream *s, int *counted) {
    i64 kind = h->kind;
    if (kind == OFFER) {
        s = make(l, h, sender, s);
        s->half[sender].granted = s->half[sender].window = 0;
        s->half[1 - sender].granted = s->half[1 - sender].window = h->amount > 0 ? h->amount : 0;
        return s;
    }
    if (!s) return s;
    answer(l, s, sender);
    Half *own = &s->half[sender], *peer = &s->half[1 - sender];
    if (own->final != NEVER) return s;
    if (kind == CONTENT) {
        if (own->state == OPEN) own->spent += h->size, *counted = 1;
    } else if (kind == ACCEPTED) {
        if (s->opener == 1 - sender && !s->accepted)
            s->accepted = 1, peer->granted = peer->window = h->amount > 0 ? h->amount : 0;
    } else if (kind == PROCESSED) {
        if (peer->granted >= 0 && h->amount > 0) peer->granted += h->amount;
    } else if (kind == ADJUST) {
        if (peer->granted >= 0 && h->amount > peer->window)
            peer->granted += h->amount - peer->window, peer->window = h->amount;
    } else if (kind == COMPLETED) {
        if (own->state == OPEN) stop(own, ENDED, l->sent[sender], 0);
    } else if (kind == TERMINATED) {
        own->final = l->sent[sender];
        if (own->state == OPEN) stop(own, ABORTED, own->final, 0);
    }
    return s;
}

static void measure(Half *half, i64 at) { /* time without leave, and the most outstanding */
    if (half->granted < 0) return;
    if (half->spent >= half->granted && half->blocked_since < 0) half->blocked_since = at;
    i64 outstanding = half->spent - (half->granted - half->window);
    if (outstanding > half->peak) half->peak = outstanding;
    if (half->state != OPEN && half->blocked_since >= 0)
        half->blocked += at - half->blocked_since, half->blocked_since = -1;
}

/* --- the loop */

static void row(Loop *l, i64 sender, const Head *h, const Stream *s, i64 offset, i64 size, i64 at,
                i64 verdict) {
    i64 i = l->rows;
    l->sender[i] = sender, l->ordinal[i] = l->sent[sender], l->at[i] = at;
    l->start[i] = offset, l->size[i] = size, l->kind[i] = h->kind;
    l->opener[i] = s ? s->opener : 255;
    if (s) l->number[i] = s->number, l->incarnation[i] = s->incarnation;
    l->amount[i] = h->amount, l->payload[i] = h->size, l->verdict[i] = verdict;
    l->verdicts[verdict]++;
    if (++l->rows == l->room) l->rows = 0, l->turned++;
}

static inline i64 run(Loop *l, int mplex, i64 sender, const u8 *data, i64 end, i64 at) {
    i64 pos = 0, base = l->offset[sender];
    Head h;
    while (pos < end) {
        l->frozen[sender] = l->read[sender];
        i64 start = mplex ? mplex_header(data, pos, end, sender, &h)
                          : nerdbank_header(data, pos, end, sender, &h);
        if (start < 0 || h.size > end - start) break;
        Stream *s = *slot(l, h.key);
        int counted = 0;
        i64 verdict = h.flaws | (mplex ? mplex_judge(l, sender, &h, s)
                                       : nerdbank_judge(l, sender, &h, s));
        s = mplex ? mplex_apply(l, sender, &h, s, &counted)
                  : nerdbank_apply(l, sender, &h, s, &counted);
        if (s) {
            Half *half = &s->half[sender];
            half->frames++;
            if (!mplex && h.kind == CONTENT) measure(half, at);
            if (counted) {
                half->bytes += h.size, half->last_at = at;
                if (half->first_at < 0) half->first_at = at;
            }
            s->over = mplex ? mplex_over(s) : nerdbank_over(s);
        }
        for (i64 rest = verdict & ~CROSSED; rest; rest &= rest - 1)
            l->counts[__builtin_ctzll(rest)]++;
        i64 after = start + h.size;
        row(l, sender, &h, s, base + pos, after - pos, at,
            verdict & l->findings ? 2 : verdict & CROSSED ? 1 : 0);
        l->sent[sender]++;
        pos = after;
    }
    l->offset[sender] = base + pos;
    return pos;
}

i64 mplex_feed(Loop *l, i64 sender, const u8 *data, i64 end, i64 at) {
    return run(l, 1, sender, data, end, at);
}
i64 nerdbank_feed(Loop *l, i64 sender, const u8 *data, i64 end, i64 at) {
    return run(l, 0, sender, data, end, at);
}

/* --- the chain of headers alone */

typedef struct { i64 room; u8 *width, *kind; i64 *offset, *key, *content, *size; } Chain;

Chain *chain_new(i64 room) {
    Chain *c = calloc(1, sizeof *c);
    c->room = room, c->width = calloc(room, 1), c->kind = calloc(room, 1);
    c->offset = calloc(room, 8), c->key = calloc(room, 8);
    c->content = calloc(room, 8), c->size = calloc(room, 8);
    return c;
}

static i64 streamux_header(const u8 *data, i64 pos, i64 end, i64 sender, Head *h) {
    if (end - pos < 4) return SHORT; /* 17 bits of length, 13 of id; both sides alike */
    i64 word = data[pos] | data[pos + 1] << 8 | data[pos + 2] << 16 | (i64)data[pos + 3] << 24;
    i64 flags = word >> 30, reply = flags & 1;
    h->kind = flags >> 1 | reply << 1, h->size = word >> 13 & 0x1FFFF, h->number = word & 0x1FFF;
    if (!h->size) h->kind |= 4;
    h->opener = sender ^ reply, h->key = h->number * 2 + h->opener;
    h->flaws = 0, h->amount = -1;
    return pos + 4;
}

enum { MPLEX, NERDBANK, STREAMUX };

static inline i64 follow(Chain *c, int wire, i64 sender, const u8 *data, i64 end) {
    i64 pos = 0, rows = 0, i = 0;
    Head h;
    while (pos < end) {
        i64 start = wire == MPLEX ? mplex_header(data, pos, end, sender, &h)
                    : wire == NERDBANK ? nerdbank_header(data, pos, end, sender, &h)
                                       : streamux_header(data, pos, end, sender, &h);
        if (start < 0) break;
        c->offset[i] = pos, c->width[i] = start - pos, c->kind[i] = h.kind, c->key[i] = h.key;
        c->content[i] = start, c->size[i] = h.size;
        pos = start + h.size;
        rows++;
        if (++i == c->room) i = 0;
    }
    return rows;
}

i64 mplex_chain(Chain *c, i64 sender, const u8 *data, i64 end) {
    return follow(c, MPLEX, sender, data, end);
}
i64 nerdbank_chain(Chain *c, i64 sender, const u8 *data, i64 end) {
    return follow(c, NERDBANK, sender, data, end);
}
i64 streamux_chain(Chain *c, i64 sender, const u8 *data, i64 end) {
    return follow(c, STREAMUX, sender, data, end);
}
