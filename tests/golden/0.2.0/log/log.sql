BEGIN TRANSACTION;
CREATE TABLE about (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "about" VALUES('key','f7da9fb32447b3a74b10bd8a4658fb88');
INSERT INTO "about" VALUES('version','7');
CREATE TABLE erased (digest TEXT PRIMARY KEY);
CREATE TABLE erasures (id TEXT PRIMARY KEY, time BIGINT NOT NULL, content TEXT NOT NULL);
CREATE TABLE evidence (
    request TEXT PRIMARY KEY, rollout TEXT NOT NULL, time BIGINT NOT NULL, person TEXT, arm TEXT NOT NULL,
    stage TEXT NOT NULL, policy TEXT NOT NULL, mode TEXT NOT NULL, items TEXT NOT NULL, seen BIGINT);
CREATE TABLE evidence_answers (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, item TEXT NOT NULL, event TEXT NOT NULL, reward DOUBLE PRECISION,
    time BIGINT NOT NULL, arrived BIGINT);
CREATE TABLE feedback (
    id TEXT PRIMARY KEY, request TEXT NOT NULL, item TEXT NOT NULL, event TEXT NOT NULL, reward DOUBLE PRECISION,
    time BIGINT NOT NULL, late INTEGER NOT NULL, rotation BIGINT, arrived BIGINT);
INSERT INTO "feedback" VALUES('a1','018bd01c5680ac58b72718b76acdac3b','1','click',NULL,1700003600020,0,NULL,1700003600020);
INSERT INTO "feedback" VALUES('a2','018bd05345000b94e0a89bea67a86e65','1','click',NULL,1700007200020,0,NULL,1700007200020);
CREATE TABLE filters (digest TEXT PRIMARY KEY, content TEXT NOT NULL);
CREATE TABLE requests (
    id TEXT PRIMARY KEY, time BIGINT NOT NULL, person TEXT, history TEXT NOT NULL, items TEXT NOT NULL,
    propensities TEXT NOT NULL, policy TEXT NOT NULL, beta DOUBLE PRECISION, mode TEXT NOT NULL,
    floor DOUBLE PRECISION NOT NULL, filter TEXT NOT NULL, deferred INTEGER NOT NULL, share DOUBLE PRECISION NOT NULL,
    arm TEXT NOT NULL, stage TEXT NOT NULL, rotation BIGINT, rollout TEXT NOT NULL DEFAULT '');
INSERT INTO "requests" VALUES('018bd01c5680ac58b72718b76acdac3b',1700003600000,'p1','[[3,"click"]]','[1,2]','[0.5,0.25]','abc',0.5,'drawn',0.01,'',0,1.0,'','',NULL,'');
INSERT INTO "requests" VALUES('018bd05345000b94e0a89bea67a86e65',1700007200000,'p2','[[3,"click"]]','[1,2]','[0.5,0.25]','abc',0.5,'drawn',0.01,'',0,1.0,'','',NULL,'');
CREATE TABLE rotations (
    number BIGINT PRIMARY KEY, upto BIGINT NOT NULL, file TEXT NOT NULL, rows BIGINT, sha256 TEXT, answers TEXT);
INSERT INTO "rotations" VALUES(1,1700003600000,'events-1700000000000-1700003600000-5c5c9faf.parquet',3,'359fa81dc4309cfc3ecc6c1f964d8a3afbe1ced6c6135b2cc275d305e7b177ea','{"used":1}');
CREATE TABLE shadow (
    request TEXT PRIMARY KEY, policy TEXT NOT NULL, failed INTEGER NOT NULL, rollout TEXT NOT NULL DEFAULT '');
CREATE TABLE shown (request TEXT PRIMARY KEY, places INTEGER NOT NULL, time BIGINT NOT NULL, arrived BIGINT);
INSERT INTO "shown" VALUES('018bd01c5680ac58b72718b76acdac3b',2,1700003600010,1700003600010);
INSERT INTO "shown" VALUES('018bd05345000b94e0a89bea67a86e65',2,1700007200010,1700007200010);
CREATE TABLE withdrawn (request TEXT PRIMARY KEY, time BIGINT NOT NULL);
CREATE INDEX requests_by_time ON requests (time);
CREATE INDEX requests_by_person ON requests (person);
CREATE INDEX requests_by_rotation ON requests (rotation) WHERE rotation IS NOT NULL;
CREATE INDEX requests_by_rollout ON requests (rollout) WHERE rollout <> '';
CREATE INDEX feedback_by_request ON feedback (request);
CREATE INDEX feedback_by_rotation ON feedback (rotation) WHERE rotation IS NOT NULL;
CREATE INDEX evidence_by_rollout ON evidence (rollout);
CREATE INDEX evidence_answers_by_request ON evidence_answers (request);
COMMIT;
