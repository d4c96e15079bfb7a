"""What PostgreSQL sees to more strictly since the third migration, against what a login could do by SQL of its own.

One event for each move, one move for each event, in the order in which they were written; no value that would keep a
reader from the whole fleet; no word over the reason that the other role gave.
"""

STATEMENTS = (
    # Python knows no 24:00. No backslash: a session may have them mean something else in a text.
    """
    CREATE OR REPLACE FUNCTION muster_moment(told text) RETURNS timestamptz
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
    BEGIN
        IF told !~ '^[0-9]{4}-[0-9]{2}-[0-9]{2}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]([.][0-9]{1,6})?[+]00:00$' THEN
            RAISE EXCEPTION 'not a time in UTC: %', told USING ERRCODE = 'invalid_datetime_format';
        END IF;
        RETURN told::timestamptz;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION muster_guard_node() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE former text;
    DECLARE told text;
    DECLARE mine text := {schema}.muster_role();
    BEGIN
        IF NEW.ends IS NOT NULL THEN PERFORM {schema}.muster_moment(NEW.ends); END IF;
        -- from the last version there would be none to go on to
        IF TG_OP = 'INSERT' AND mine IS NOT NULL AND NEW.version <> 1 THEN
            RAISE EXCEPTION '% begins with version 1', NEW.name USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- a list reads it as an integer, of every node at once
        IF coalesce(NEW.facts->>'vmid', '0') !~ '^[0-9]{1,9}$' THEN
            RAISE EXCEPTION 'not a VMID: %', NEW.facts->'vmid' USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF TG_OP = 'UPDATE' THEN
            IF NEW.name <> OLD.name THEN
                RAISE EXCEPTION 'a node keeps its name' USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF NEW.version <> OLD.version + 1 THEN
                RAISE EXCEPTION 'version % of % cannot follow %', NEW.version, NEW.name, OLD.version
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            -- with its uuid a node would lose its receipts and reports
            IF NEW.uuid IS DISTINCT FROM OLD.uuid AND mine IS NOT NULL
                AND NEW.state NOT IN ('planned', 'provisioning')
            THEN
                RAISE EXCEPTION '% is %, and keeps its uuid', NEW.name, NEW.state
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF NEW.reason IS DISTINCT FROM OLD.reason AND mine IS NOT NULL
                AND NOT EXISTS (SELECT FROM moves m WHERE m.after = NEW.state AND m.role = mine)
            THEN
                RAISE EXCEPTION '% is %, and its reason is not for the role % to give', NEW.name, NEW.state, mine
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF NEW.state = OLD.state THEN RETURN NEW; END IF;
            -- or a node would move on, and back to where its history ends, without a word
            SELECT e.after INTO told FROM events e WHERE e.node = NEW.name ORDER BY e.id DESC LIMIT 1;
            IF told IS DISTINCT FROM OLD.state THEN
                RAISE EXCEPTION '% is %, and its history ends with %', NEW.name, OLD.state, coalesce(told, 'nothing')
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            former := OLD.state;
        END IF;
        IF NOT {schema}.muster_may(former, NEW.state) THEN
            RAISE EXCEPTION '% may not become % from % by a login of the role %',
                NEW.name, NEW.state, coalesce(former, 'nothing'), coalesce(mine, 'owner')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN NEW;
    END $$
    """,
    """
    CREATE OR REPLACE FUNCTION muster_guard_event() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE last text;
    DECLARE last_id bigint;
    DECLARE stands text;
    BEGIN
        NEW.role := {schema}.muster_role();
        NEW.db_user := session_user;
        NEW.recorded_at := clock_timestamp();
        PERFORM {schema}.muster_moment(NEW.at);
        -- one writer after the other, so that none judges by a history that another is about to go on with
        SELECT n.state INTO stands FROM nodes n WHERE n.name = NEW.node FOR NO KEY UPDATE;
        SELECT e.after, e.id INTO last, last_id FROM events e WHERE e.node = NEW.node ORDER BY e.id DESC LIMIT 1;
        -- its number was drawn before it had to wait for the other
        IF NEW.id <= last_id THEN NEW.id := nextval('{schema}.events_id_seq'); END IF;
        IF NEW.before IS DISTINCT FROM last THEN
            RAISE EXCEPTION 'the history of % ends with %, and an event from % cannot follow',
                NEW.node, coalesce(last, 'nothing'), coalesce(NEW.before, 'nothing')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        -- first the move, then its event: who tells of a road there and back must have walked it
        IF NEW.after IS DISTINCT FROM stands THEN
            RAISE EXCEPTION '% is %, and no event can say that it is %',
                NEW.node, coalesce(stands, 'not on record'), NEW.after USING ERRCODE = 'insufficient_privilege';
        END IF;
        IF NEW.after IS DISTINCT FROM NEW.before AND NOT {schema}.muster_may(NEW.before, NEW.after) THEN
            RAISE EXCEPTION '% may not become % from % by a login of the role %',
                NEW.node, NEW.after, coalesce(NEW.before, 'nothing'), coalesce(NEW.role, 'owner')
                USING ERRCODE = 'insufficient_privilege';
        END IF;
        RETURN NEW;
    END $$
    """,
    # Of whoever has no role, or both, a lease is no less one.
    """
    CREATE OR REPLACE FUNCTION muster_guard_lease() RETURNS trigger
    LANGUAGE plpgsql SET search_path = {schema}, pg_temp AS $$
    DECLARE mine text := {schema}.muster_role();
    DECLARE here float8 := extract(epoch FROM clock_timestamp());
    BEGIN
        IF TG_OP <> 'INSERT' THEN
            IF mine IS NOT NULL AND OLD.role IS DISTINCT FROM mine AND OLD.expires > here THEN
                RAISE EXCEPTION 'the lease on % is of the role %', OLD.node, coalesce(OLD.role, 'owner')
                    USING ERRCODE = 'insufficient_privilege';
            END IF;
            IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
        END IF;
        NEW.role := mine;
        NEW.taken := here;
        IF TG_OP = 'UPDATE' AND NEW.token = OLD.token THEN NEW.taken := OLD.taken; END IF;
        -- no run keeps a node for long without a word, whatever it asks for
        NEW.expires := least(greatest(NEW.expires, here), here + 3600);
        RETURN NEW;
    END $$
    """,
)
