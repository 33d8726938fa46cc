CREATE TABLE quota_usage (
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	slot BIGINT NOT NULL, 
	instances BIGINT NOT NULL, 
	cores BIGINT NOT NULL, 
	ram BIGINT NOT NULL, 
	PRIMARY KEY (project_id, user_id, slot)
)
-- next
CREATE TABLE actions (
	id BIGSERIAL NOT NULL, 
	request_id VARCHAR(255) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	start_time VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	message TEXT, 
	state VARCHAR(8) NOT NULL, 
	args TEXT NOT NULL, 
	host VARCHAR(255), 
	waits_for VARCHAR(255), 
	kind VARCHAR(8) NOT NULL, 
	holder VARCHAR(255), 
	lease_until VARCHAR(26), 
	not_before VARCHAR(26), 
	attempts INTEGER NOT NULL, 
	cancel BOOLEAN NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (server_id, request_id, action)
)
-- next
CREATE INDEX actions_open ON actions (id) WHERE state IN ('queued', 'running')
-- next
CREATE INDEX actions_server ON actions (server_id, id)
-- next
CREATE TABLE migrations (
	id BIGSERIAL NOT NULL, 
	uuid VARCHAR(36) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	source VARCHAR(255) NOT NULL, 
	target VARCHAR(255), 
	old_flavor TEXT, 
	new_flavor TEXT, 
	progress TEXT, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	old_vm_state VARCHAR(32), 
	asked VARCHAR(16), 
	PRIMARY KEY (id), 
	UNIQUE (uuid)
)
-- next
CREATE INDEX migrations_target ON migrations (target)
-- next
CREATE INDEX migrations_status ON migrations (status, created_at, id, uuid)
-- next
CREATE INDEX migrations_server ON migrations (server_id, id)
-- next
CREATE INDEX migrations_created ON migrations (created_at, id, uuid)
-- next
CREATE INDEX migrations_source ON migrations (source)
-- next
CREATE TABLE drained_servers (
	host VARCHAR(255) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	action VARCHAR(64), 
	request_id VARCHAR(255), 
	target VARCHAR(255), 
	message TEXT, 
	round INTEGER NOT NULL, 
	updated_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (host, server_id)
)
-- next
CREATE TABLE incidents (
	id VARCHAR(36) NOT NULL, 
	host VARCHAR(255), 
	open_key VARCHAR(255), 
	state VARCHAR(16) NOT NULL, 
	message TEXT NOT NULL, 
	noticed_at VARCHAR(26) NOT NULL, 
	checked_at VARCHAR(26), 
	fencing_at VARCHAR(26), 
	fenced_at VARCHAR(26), 
	finished_at VARCHAR(26), 
	moved INTEGER NOT NULL, 
	failed INTEGER NOT NULL, 
	remaining INTEGER NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (open_key)
)
-- next
CREATE INDEX incidents_fencing ON incidents (fencing_at)
-- next
CREATE INDEX incidents_noticed ON incidents (noticed_at, id)
-- next
CREATE TABLE incident_servers (
	incident_id VARCHAR(36) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	policy VARCHAR(16) NOT NULL, 
	priority INTEGER NOT NULL, 
	state VARCHAR(8) NOT NULL, 
	attempts INTEGER NOT NULL, 
	not_before VARCHAR(26), 
	request_id VARCHAR(255), 
	target VARCHAR(255), 
	message TEXT, 
	updated_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (incident_id, server_id)
)
-- next
CREATE TABLE image_requests (
	host VARCHAR(255) NOT NULL, 
	image_id VARCHAR(36) NOT NULL, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26), 
	PRIMARY KEY (host, image_id)
)
-- next
CREATE TABLE console_tokens (
	number BIGSERIAL NOT NULL, 
	hash VARCHAR(64) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	type VARCHAR(16) NOT NULL, 
	host VARCHAR(255) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	channels INTEGER, 
	expires_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (number), 
	UNIQUE (hash)
)
-- next
CREATE INDEX console_tokens_expires ON console_tokens (expires_at)
-- next
CREATE INDEX console_tokens_server ON console_tokens (server_id, number)
-- next
CREATE TABLE host_states (
	host VARCHAR(255) NOT NULL, 
	watcher VARCHAR(255), 
	lease_until VARCHAR(26), 
	seen_at VARCHAR(26), 
	problem TEXT, 
	told TEXT, 
	PRIMARY KEY (host)
)
-- next
CREATE TABLE conductors (
	holder VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	started_at VARCHAR(26), 
	seen_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (holder)
)
-- next
CREATE TABLE notifications (
	id BIGSERIAL NOT NULL, 
	receiver VARCHAR(255) NOT NULL, 
	message_id VARCHAR(36) NOT NULL, 
	event_type VARCHAR(255) NOT NULL, 
	created_at VARCHAR(26) NOT NULL, 
	message TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (message_id, receiver)
)
-- next
CREATE INDEX notifications_receiver ON notifications (receiver, id)
-- next
CREATE TABLE notification_receivers (
	name VARCHAR(255) NOT NULL, 
	holder VARCHAR(255), 
	lease_until VARCHAR(26), 
	failures INTEGER NOT NULL, 
	not_before VARCHAR(26), 
	problem TEXT, 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE usage_audits (
	name VARCHAR(255) NOT NULL, 
	period_end VARCHAR(26) NOT NULL, 
	after VARCHAR(255) NOT NULL, 
	done BOOLEAN NOT NULL, 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE audit_marks (
	name VARCHAR(255) NOT NULL, 
	position VARCHAR(255) NOT NULL, 
	action_id BIGINT NOT NULL, 
	PRIMARY KEY (name)
)
-- next
CREATE TABLE servers (
	id VARCHAR(36) NOT NULL, 
	project_id VARCHAR(255) NOT NULL, 
	user_id VARCHAR(255) NOT NULL, 
	name VARCHAR(255) NOT NULL, 
	description VARCHAR(255), 
	hostname VARCHAR(255), 
	vm_state VARCHAR(32) NOT NULL, 
	task_state VARCHAR(32), 
	power_state INTEGER NOT NULL, 
	progress INTEGER NOT NULL, 
	host VARCHAR(255), 
	instance_name VARCHAR(255), 
	availability_zone VARCHAR(255), 
	pinned_availability_zone VARCHAR(255), 
	flavor_id VARCHAR(255) NOT NULL, 
	flavor TEXT NOT NULL, 
	image_id VARCHAR(36), 
	image TEXT NOT NULL, 
	key_name VARCHAR(255), 
	metadata TEXT NOT NULL, 
	tags TEXT NOT NULL, 
	user_data TEXT, 
	config_drive BOOLEAN NOT NULL, 
	locked_by VARCHAR(8), 
	locked_reason VARCHAR(255), 
	access_ip_v4 VARCHAR(45), 
	access_ip_v6 VARCHAR(45), 
	disk_config VARCHAR(8) NOT NULL, 
	root_device_name VARCHAR(255), 
	reservation_id VARCHAR(16), 
	launch_index INTEGER NOT NULL, 
	security_groups TEXT NOT NULL, 
	interfaces TEXT NOT NULL, 
	addresses TEXT NOT NULL, 
	volumes TEXT NOT NULL, 
	shares TEXT NOT NULL, 
	request TEXT NOT NULL, 
	hints TEXT NOT NULL, 
	shelved_at VARCHAR(26), 
	shelved_image_id VARCHAR(36), 
	soft_deleted_at VARCHAR(26), 
	rescue_gb INTEGER, 
	password TEXT, 
	cleared_password VARCHAR(64), 
	guest_revision INTEGER DEFAULT '0' NOT NULL, 
	guest_data_due BOOLEAN, 
	trusted_certs TEXT, 
	old_flavor TEXT, 
	fault TEXT, 
	leaving VARCHAR(36), 
	cell_moves INTEGER DEFAULT '0' NOT NULL, 
	launched_at VARCHAR(26), 
	terminated_at VARCHAR(26), 
	deleted_at VARCHAR(26), 
	created_at VARCHAR(26) NOT NULL, 
	updated_at VARCHAR(26) NOT NULL, 
	PRIMARY KEY (id)
)
-- next
CREATE INDEX servers_project_gone ON servers (project_id, created_at, id, name, vm_state, deleted_at) WHERE deleted_at IS NOT NULL
-- next
CREATE INDEX servers_usage ON servers (project_id COLLATE "C", id)
-- next
CREATE INDEX servers_soft_deleted ON servers (soft_deleted_at) WHERE soft_deleted_at IS NOT NULL
-- next
CREATE INDEX servers_changed ON servers (updated_at, created_at, id, project_id, deleted_at) WHERE deleted_at IS NULL
-- next
CREATE INDEX servers_guest_data_due ON servers (host) WHERE guest_data_due IS NOT NULL
-- next
CREATE INDEX servers_ended ON servers (terminated_at, launched_at, host) WHERE terminated_at IS NOT NULL
-- next
CREATE INDEX servers_changed_gone ON servers (updated_at, created_at, id, project_id, deleted_at) WHERE deleted_at IS NOT NULL
-- next
CREATE INDEX servers_leaving ON servers (project_id, leaving) WHERE leaving IS NOT NULL
-- next
CREATE INDEX servers_host_gone ON servers (host, launched_at, terminated_at, deleted_at) WHERE deleted_at IS NOT NULL
-- next
CREATE INDEX servers_host ON servers (host, launched_at, terminated_at, deleted_at) WHERE deleted_at IS NULL
-- next
CREATE INDEX servers_name ON servers (name COLLATE "C", created_at, id, deleted_at) WHERE deleted_at IS NULL
-- next
CREATE INDEX servers_created ON servers (created_at, id) WHERE deleted_at IS NULL
-- next
CREATE INDEX servers_state ON servers (vm_state, created_at, id) WHERE deleted_at IS NULL
-- next
CREATE INDEX servers_project ON servers (project_id, created_at, id, name, vm_state, deleted_at) WHERE deleted_at IS NULL
-- next
CREATE INDEX servers_created_gone ON servers (created_at, id) WHERE deleted_at IS NOT NULL
-- next
CREATE INDEX servers_task ON servers (task_state) WHERE task_state IS NOT NULL
-- next
CREATE TABLE action_events (
	id BIGSERIAL NOT NULL, 
	action_id BIGINT NOT NULL, 
	event VARCHAR(255) NOT NULL, 
	start_time VARCHAR(26) NOT NULL, 
	finish_time VARCHAR(26), 
	result VARCHAR(16), 
	host VARCHAR(255), 
	traceback TEXT, 
	details TEXT, 
	PRIMARY KEY (id), 
	FOREIGN KEY(action_id) REFERENCES actions (id) ON DELETE CASCADE
)
-- next
CREATE INDEX action_events_action ON action_events (action_id, id)
-- next
CREATE TABLE server_tags (
	tag VARCHAR(60) NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	PRIMARY KEY (tag, server_id), 
	FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE
)
-- next
CREATE INDEX server_tags_server ON server_tags (server_id)
-- next
CREATE TABLE server_addresses (
	version INTEGER NOT NULL, 
	address VARCHAR(45) COLLATE "C" NOT NULL, 
	server_id VARCHAR(36) NOT NULL, 
	PRIMARY KEY (version, address, server_id), 
	FOREIGN KEY(server_id) REFERENCES servers (id) ON DELETE CASCADE
)
-- next
CREATE INDEX server_addresses_server ON server_addresses (server_id)
-- next
CREATE OR REPLACE FUNCTION add_quota_usage(project text, owner text, more_instances bigint,
 more_cores bigint, more_ram bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE free bigint;
BEGIN
  SELECT slot INTO free FROM quota_usage WHERE project_id = project AND user_id = owner
    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
  IF FOUND THEN
    UPDATE quota_usage SET instances = instances + more_instances, cores = cores + more_cores, ram = ram + more_ram
      WHERE project_id = project AND user_id = owner AND slot = free;
  ELSE
    INSERT INTO quota_usage (project_id, user_id, slot, instances, cores, ram)
      VALUES (project, owner, txid_current(), more_instances, more_cores, more_ram) ON CONFLICT (project_id, user_id, slot) DO UPDATE SET instances = quota_usage.instances + excluded.instances,
 cores = quota_usage.cores + excluded.cores, ram = quota_usage.ram + excluded.ram;
  END IF;
END $$
-- next
CREATE OR REPLACE FUNCTION count_server_rows() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE sign bigint := CASE TG_OP WHEN 'INSERT' THEN 1 ELSE -1 END;
BEGIN
  PERFORM add_quota_usage(project_id, user_id, sign * instances, CAST(sign * cores AS bigint),
    CAST(sign * ram AS bigint)) FROM (
    SELECT project_id, user_id, count(*) AS instances, sum(coalesce(CAST(CAST(changed.flavor AS jsonb) ->> 'vcpus' AS bigint), 0)) AS cores,
      sum(coalesce(CAST(CAST(changed.flavor AS jsonb) ->> 'ram' AS bigint), 0)) AS ram
      FROM changed WHERE ((changed.deleted_at IS NULL AND (changed.vm_state <> 'soft-delete' OR coalesce(changed.task_state, '') = 'restoring')) AND changed.leaving IS NULL) GROUP BY project_id, user_id) AS usage;
  RETURN NULL;
END $$
-- next
CREATE OR REPLACE FUNCTION count_changed_server() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF ((OLD.deleted_at IS NULL AND (OLD.vm_state <> 'soft-delete' OR coalesce(OLD.task_state, '') = 'restoring')) AND OLD.leaving IS NULL) THEN
    PERFORM add_quota_usage(OLD.project_id, OLD.user_id, -1, -coalesce(CAST(CAST(OLD.flavor AS jsonb) ->> 'vcpus' AS bigint), 0), -coalesce(CAST(CAST(OLD.flavor AS jsonb) ->> 'ram' AS bigint), 0));
  END IF;
  IF ((NEW.deleted_at IS NULL AND (NEW.vm_state <> 'soft-delete' OR coalesce(NEW.task_state, '') = 'restoring')) AND NEW.leaving IS NULL) THEN
    PERFORM add_quota_usage(NEW.project_id, NEW.user_id, 1, coalesce(CAST(CAST(NEW.flavor AS jsonb) ->> 'vcpus' AS bigint), 0), coalesce(CAST(CAST(NEW.flavor AS jsonb) ->> 'ram' AS bigint), 0));
  END IF;
  RETURN NULL;
END $$
-- next
CREATE TRIGGER servers_usage_insert AFTER INSERT ON servers REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_server_rows()
-- next
CREATE TRIGGER servers_usage_delete AFTER DELETE ON servers REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_server_rows()
-- next
CREATE TRIGGER servers_usage_update AFTER UPDATE ON servers FOR EACH ROW WHEN ((((OLD.deleted_at IS NULL AND (OLD.vm_state <> 'soft-delete' OR coalesce(OLD.task_state, '') = 'restoring')) AND OLD.leaving IS NULL) <> ((NEW.deleted_at IS NULL AND (NEW.vm_state <> 'soft-delete' OR coalesce(NEW.task_state, '') = 'restoring')) AND NEW.leaving IS NULL) OR (((NEW.deleted_at IS NULL AND (NEW.vm_state <> 'soft-delete' OR coalesce(NEW.task_state, '') = 'restoring')) AND NEW.leaving IS NULL) AND (OLD.project_id <> NEW.project_id OR OLD.user_id <> NEW.user_id OR OLD.flavor <> NEW.flavor)))) EXECUTE FUNCTION count_changed_server()
-- next
CREATE TABLE alembic_version_cell (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_cell_pkc PRIMARY KEY (version_num)
)
-- next
INSERT INTO alembic_version_cell (version_num) VALUES ('0001')
