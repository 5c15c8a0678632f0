/* The way of the data between ranks that share no memory: K collectives of one group and its close, of
 * which two are under way.
 *
 * Every call is a gather (all send to all) or a broadcast from rank 0 or 1, of CHUNKS chunks. The
 * first chunk of a call on a link has a head, which tells its number and its call; the sum of all calls
 * before, which it tells as well, is left out. A link is opened by a head alone; from then on at most
 * WINDOW chunks are on it that the receiver has not taken, which it tells by credits. One rank may make
 * one other call than the rest.
 * Checked:
 *   - what is taken is of the same number and the same call;
 *   - ranks that differ do not all get through: after close, at the latest, somebody knows;
 *   - if they do not differ, all get through;
 *   - no more chunks wait for the receiver than it has memory for;
 *   - nothing of a group comes to a rank that has closed it.
 * Faults that must be found: NO_COMPARE (heads are not looked at), NO_CREDITS (the end of a send is taken
 * for a credit), NO_FLUSH (close does not wait until its chunks are credited). */
#ifndef N
#define N 2
#endif
#ifndef K
#define K 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef WINDOW
#define WINDOW 1
#endif
#define UNDER_WAY 2

#define GATHER 1
#define FROM0 2
#define FROM1 3
#define CLOSE 4            /* one empty chunk from all to all */
#define NONE 15

/* How many chunks go from one rank to another: a function of the call alone. */
#define MANY(call, from) (call == GATHER -> CHUNKS : (call == CLOSE -> 1 : (call == FROM0 + from -> CHUNKS : 0)))

#define HEAD 1             /* a chunk with a head */
#define OPEN 2             /* a head without data */
#define LINK(from, to) ((from) * N + (to))
chan link[N * N] = [WINDOW + 3] of { byte, byte };  /* number, what */
chan credit[N * N] = [WINDOW + 3] of { byte };      /* by the link that is credited */

#define AT(k, from, to) (((k) * N + (from)) * N + (to))
byte wants[(K + 1) * N * N];  /* chunks that are still to be taken */
byte has[(K + 1) * N * N];    /* and to be sent */
byte call[(N + 1) * (K + 1)];      /* the last row: what all should call */
#define CALL(r, k) call[(r) * (K + 1) + (k)]
byte posted[N], done[N];
bool closed[N];
bool opened[N * N];           /* the sender has sent OPEN */
bool granted[N * N];          /* the receiver has posted its receives */
bool judged[N * N];           /* the receiver has looked at the head that its next chunk belongs to */
byte headed[N * N];           /* the sender: the last number whose head is out, and one */
byte room[N * N];             /* chunks that the sender may send */
byte owes[N * N];             /* credits that the receiver has not told */
byte odd = NONE;              /* the rank that may make another call */
bool differed = 0;
bool over = 0;                /* somebody knows that something is wrong: the ending */

/* What comes next on a link, for the receiver and for the sender; NONE if nothing. */
#if K == 1
#define NEXT(what, from, to) (what[AT(0, from, to)] -> 0 : (what[AT(1, from, to)] -> 1 : NONE))
#else
#define NEXT(what, from, to) (what[AT(0, from, to)] -> 0 : (what[AT(1, from, to)] -> 1 : (what[AT(2, from, to)] -> 2 : NONE)))
#endif

#ifdef WHOLE
#define STEP(...) __VA_ARGS__
#else
#define STEP(...) atomic { __VA_ARGS__ }
#endif
#if N == 2
#define OF_ALL(f, me, op) (f(me, 0) op f(me, 1))
#else
#define OF_ALL(f, me, op) (f(me, 0) op f(me, 1) op f(me, 2))
#endif
#define NOTHING(me, p) (wants[AT(done[me], p, me)] == 0 && has[AT(done[me], me, p)] == 0)
#define CREDITED(me, p) (p == me || (room[LINK(me, p)] == WINDOW && owes[LINK(p, me)] == 0))
#ifdef NO_FLUSH
#define FLUSHED(me) true
#else
#define FLUSHED(me) OF_ALL(CREDITED, me, &&)
#endif

inline take(p) {
  link[LINK(p, me)]?h, what;
  assert(h == k && CALL(me, k) == CALL(p, k));
  wants[AT(k, p, me)]--;
  owes[LINK(p, me)]++;
  judged[LINK(p, me)] = (wants[AT(k, p, me)] > 0)
}
/* It has started the call, or expects another: what was started ahead waits. */
#define IS_HEAD(p) (link[LINK(p, me)]?[_, HEAD] || link[LINK(p, me)]?[_, OPEN])
#define STARTED(p) (link[LINK(p, me)]?[0, _] && posted[me] > 0 || link[LINK(p, me)]?[1, _] && posted[me] > 1 || link[LINK(p, me)]?[2, _] && posted[me] > 2)
#define SEES_HEAD(p) (IS_HEAD(p) && (NEXT(wants, p, me) != NONE || STARTED(p)))
#ifdef NO_COMPARE
#define GOOD(p) true
#else
#define GOOD(p) (k != NONE && h == k && CALL(me, h) == CALL(p, h))
#endif
#ifdef NO_CREDITS
#define SENT(p) skip
#else
#define SENT(p) room[LINK(me, p)]--
#endif

/* The head alone that opens a link has memory of its own. */
#define FITS(p) (len(link[LINK(me, p)]) <= WINDOW || (len(link[LINK(me, p)]) == WINDOW + 1 && link[LINK(me, p)]?[_, OPEN]))

/* What a look may do with a rank p. */
#define GRANTS(p) (p != me && link[LINK(p, me)]?[_, OPEN] && !granted[LINK(p, me)])
#define HEARS(p)  (p != me && nempty(credit[LINK(me, p)]))
#define TELLS(p)  (p != me && owes[LINK(p, me)] > 0)
#define JUDGES(p) (p != me && granted[LINK(p, me)] && !judged[LINK(p, me)] && SEES_HEAD(p))
#define TAKES(p)  (p != me && judged[LINK(p, me)] && nempty(link[LINK(p, me)]))
#define OPENS(p)  (p != me && NEXT(has, me, p) != NONE && !opened[LINK(me, p)])
#define SENDS(p)  (p != me && NEXT(has, me, p) != NONE && room[LINK(me, p)] > 0)
#define CAN(me, p) (GRANTS(p) || HEARS(p) || TELLS(p) || JUDGES(p) || TAKES(p) || OPENS(p) || SENDS(p))
#define MOVES(p) \
  :: STEP(!over && GRANTS(p) -> granted[LINK(p, me)] = 1; credit[LINK(p, me)]!WINDOW) \
  :: STEP(!over && HEARS(p) -> \
     assert(!closed[me]); credit[LINK(me, p)]?h; room[LINK(me, p)] = room[LINK(me, p)] + h; h = 0) \
  :: STEP(!over && TELLS(p) -> \
     assert(!closed[p]); credit[LINK(p, me)]!owes[LINK(p, me)]; owes[LINK(p, me)] = 0) \
  :: STEP(!over && JUDGES(p) -> link[LINK(p, me)]?<h, what>; k = NEXT(wants, p, me); \
     if \
     :: GOOD(p) -> judged[LINK(p, me)] = 1; if :: what == OPEN -> link[LINK(p, me)]?h, what :: else fi \
     :: else -> over = 1 \
     fi; h = 0; what = 0; k = 0) \
  :: STEP(!over && TAKES(p) -> k = NEXT(wants, p, me); take(p); h = 0; what = 0; k = 0) \
  :: STEP(!over && OPENS(p) -> opened[LINK(me, p)] = 1; \
     k = NEXT(has, me, p); headed[LINK(me, p)] = k + 1; link[LINK(me, p)]!k, OPEN; k = 0) \
  :: STEP(!over && SENDS(p) -> k = NEXT(has, me, p); \
     if :: headed[LINK(me, p)] == k + 1 -> what = 0 :: else -> what = HEAD fi; \
     headed[LINK(me, p)] = k + 1; has[AT(k, me, p)]--; SENT(p); \
     link[LINK(me, p)]!k, what; assert(FITS(p)); k = 0; what = 0)
#define ENDS (done[me] < posted[me] && OF_ALL(NOTHING, me, &&) && (done[me] < K || FLUSHED(me)))
#if N == 2
#define ALL_MOVES MOVES(0) MOVES(1)
#else
#define ALL_MOVES MOVES(0) MOVES(1) MOVES(2)
#endif

proctype Rank(byte me) {
  byte h = 0, what = 0, k = 0, p = 0;
  do
  :: over || closed[me] -> break
  /* start; nothing is under way when it closes */
  :: atomic { !over && posted[me] <= K && posted[me] - done[me] < UNDER_WAY && (posted[me] < K || done[me] == K) ->
     k = posted[me];
     if
     :: CALL(me, k) = CALL(N, k)
     :: me == odd && !differed && k < K -> differed = 1;
        if
        :: CALL(N, k) != GATHER -> CALL(me, k) = GATHER
        :: CALL(N, k) != FROM0 -> CALL(me, k) = FROM0
        :: CALL(N, k) != FROM1 -> CALL(me, k) = FROM1
        fi
     fi;
     posted[me]++;
     do
     :: p < N ->
        if
        :: p != me -> wants[AT(k, p, me)] = MANY(CALL(me, k), p); has[AT(k, me, p)] = MANY(CALL(me, k), me)
        :: else
        fi;
        p++
     :: else -> break
     od;
     p = 0; k = 0 }
#ifdef WHOLE
  /* A look does all that it can: moves of different ranks commute, but for when credits are told. */
  :: d_step { !over && OF_ALL(CAN, me, ||) -> do ALL_MOVES :: else -> break od; p = 0 }
#else
  ALL_MOVES
#endif
  :: atomic { !over && ENDS -> done[me]++; if :: done[me] > K -> closed[me] = 1 :: else fi }
  od
}
#define CLOSED(me, p) closed[p]
active proctype Watch() {
  /* The deadline: nothing moves. Who is not done then tells all. */
  timeout -> assert(differed == (over || !OF_ALL(CLOSED, 0, &&)))
}
init {
  byte k = 0;
  atomic {
    do
    :: k < K -> if :: CALL(N, k) = GATHER :: CALL(N, k) = FROM0 :: CALL(N, k) = FROM1 fi; k++
    :: else -> break
    od;
    CALL(N, K) = CLOSE;
    if :: odd = 0 :: odd = 1 :: odd = N - 1 fi;
    run Rank(0); run Rank(1);
#if N > 2
    run Rank(2)
#endif
  }
}
